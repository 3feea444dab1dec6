"""Parses the words of a call into settings as text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from experiments.cli.entries import Entry
from experiments.config import settings
from tracking import plain
from tracking.errors import WrongCall

OF_MODELS = ("model", "models")


def options(words: Sequence[str], entry: Entry | None = None) -> dict[str, str]:
    """Parse `--name value` or `--name=value`, each once; `--a-b` is `--a_b`, and a flag alone is true.

    Args:
        words: of the call, after its name.
        entry: whose settings they are, where that is known: its flags, and its bare values.

    Raises:
        WrongCall: for words that are no settings.
    """
    given: dict[str, str] = {}
    rest = list(words)
    for name in entry.bare if entry else ():
        if rest and not rest[0].startswith("-"):
            given[name] = rest.pop(0)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            raise WrongCall(f"'{plain.short(word)}' is not a setting; write --name value")
        written, equals, value = word[2:].partition("=")
        name = written.replace("-", "_")
        is_alone = not equals and (not rest or rest[0].startswith("--"))
        if entry and is_alone and name in entry.flags:
            value = "true"
        elif entry and is_alone and name not in entry.fields:
            settings.refuse_parameter(entry.settings, name)
            raise WrongCall(
                f"there is no setting '{plain.short(name)}'{settings.suggestion(name, entry.fields)}"
            )
        elif not equals:
            if not rest:
                raise WrongCall(
                    f"--{plain.short(written)} has no value; write --{plain.short(written)} value"
                )
            value = rest.pop(0)
        if name in given:
            raise WrongCall(f"--{plain.short(written)} is given twice")
        given[name] = value
    return given


def with_named_models(given: dict[str, str]) -> dict[str, str]:
    """Add the models that a call gives by the path of their folder, and return the call with their names.

    Raises:
        ModelError: for a folder that is no model.
    """
    return {
        name: ",".join(map(_model, text.split(","))) if name in OF_MODELS else text
        for name, text in given.items()
    }


def _model(text: str) -> str:
    """A path has a separator in it; a bare word is a model by its name."""
    from models import own

    return own.add(Path(text)) if os.sep in text else text
