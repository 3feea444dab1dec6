"""Error of models and frameworks, and the names that it offers instead."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches


class ModelError(ValueError):
    """Model, framework, device or file of weights that cannot be used, in one line for the user."""


class NoDevice(ModelError):
    """Device that the framework does not see in this process; another framework may."""


def choices(name: str, names: Collection[str]) -> str:
    """Return the names that exist instead, the nearest first: the end of a message."""
    near = get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{hint}have {', '.join(names) or 'none'}"
