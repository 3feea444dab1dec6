"""Models by the path of their folder, wherever a call names models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from models import own

SETTINGS = ("model", "models")


def named(given: Mapping[str, str]) -> dict[str, str]:
    """The settings of a call with names in the place of paths; the models are known from here on. Raises ModelError."""
    return {key: ",".join(map(_name, text.split(","))) if key in SETTINGS else text for key, text in given.items()}


def _name(text: str) -> str:
    """A path has a separator in it; a bare word is a model by its name."""
    return own.add(Path(text)) if os.sep in text else text
