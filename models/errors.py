"""The one error of models and frameworks, and how it says what there is."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches


class ModelError(ValueError):
    """A model, framework, device or file of weights that cannot serve; the message is one line for the user."""


class NoDevice(ModelError):
    """The framework sees no such device in this process; another framework may."""


def choices(name: str, names: Collection[str]) -> str:
    """What there is in place of a name that is not there, the nearest first: the end of a message."""
    near = get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{hint}have {', '.join(names) or 'none'}"
