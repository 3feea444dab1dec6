"""Words of a call as the text of settings."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from experiments import studies
from experiments.config import settings
from experiments.config.commands import COMMANDS
from tracking import plain
from tracking.errors import WrongCall


def options(words: Sequence[str], flags: Collection[str] = ()) -> dict[str, str]:
    """`--name value` or `--name=value`, each once; `--a-b` is `--a_b`, and one of `flags` alone is true. Raises WrongCall."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            raise WrongCall(f"'{plain.short(word)}' is not a setting; write --name value")
        written, equals, value = word[2:].partition("=")
        name = written.replace("-", "_")
        if not equals and name in flags and (not rest or rest[0].startswith("--")):
            value = "true"
        elif not equals:
            if not rest:
                raise WrongCall(f"--{plain.short(written)} has no value; write --{plain.short(written)} value")
            value = rest.pop(0)
        if name in found:
            raise WrongCall(f"--{plain.short(written)} is given twice")
        found[name] = value
    return found


def flags(name: str) -> set[str]:
    """The settings of a command or experiment that are true or false; a search's are those of every experiment too."""
    if name not in COMMANDS:
        return settings.flags(studies.load(name).Settings)
    of_experiments = studies.available() if COMMANDS[name].of_experiment else ()
    return settings.flags(COMMANDS[name].settings).union(*map(flags, of_experiments))
