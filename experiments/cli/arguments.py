"""Parses the words of a call into settings as text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from experiments import studies
from experiments.config import settings
from experiments.config.commands import COMMANDS
from tracking import plain
from tracking.errors import WrongCall


def options(words: Sequence[str], flags: Collection[str] = (), names: Mapping[str, object] | None = None) -> dict[str, str]:
    """`--name value` or `--name=value`, each once; `--a-b` is `--a_b`, and one of `flags` alone is true.

    names: those there are, where that is known: a mistyped flag is then told as such. Raises WrongCall.
    """
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            raise WrongCall(f"'{plain.short(word)}' is not a setting; write --name value")
        written, equals, value = word[2:].partition("=")
        name = written.replace("-", "_")
        alone = not equals and (not rest or rest[0].startswith("--"))
        if alone and name in flags:
            value = "true"
        elif alone and names is not None and name not in names:
            raise WrongCall(f"there is no setting '{plain.short(name)}'{settings.suggestion(name, names)}")
        elif not equals:
            if not rest:
                raise WrongCall(f"--{plain.short(written)} has no value; write --{plain.short(written)} value")
            value = rest.pop(0)
        if name in found:
            raise WrongCall(f"--{plain.short(written)} is given twice")
        found[name] = value
    return found


def spelled(name: str, words: Sequence[str]) -> list[str]:
    """The words after a command, with the names of the settings that may be left out before their values: `extend last`."""
    found, rest = list[str](), list(words)
    for setting in COMMANDS[name].bare if name in COMMANDS else ():
        if rest and not rest[0].startswith("-"):
            found += [f"--{setting}", rest.pop(0)]
    return [*found, *rest]


def flags(name: str) -> set[str]:
    """The settings of a command or experiment that are true or false; a search's are those of every experiment too."""
    return set().union(*map(settings.flags, _kinds(name)))


def of(name: str) -> dict[str, object]:
    """Return the settings of a command or experiment that a caller can set; a search takes those of every experiment too."""
    return {field.name: field for kind in _kinds(name) for field in settings.for_users(kind)}


def _kinds(name: str) -> list[Any]:
    """The definitions of settings that a call may use."""
    if name not in COMMANDS:
        return [studies.load(name).Settings]
    of_experiments = studies.available() if COMMANDS[name].of_experiment else ()
    return [COMMANDS[name].settings, *(studies.load(one).Settings for one in of_experiments)]
