"""What a call can name: the experiments and the commands, with the settings that each takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from experiments import studies
from experiments.cli import commands
from experiments.config import settings as settings_


@dataclass(frozen=True)
class Entry:
    """An experiment or a command.

    run: does it with settings as text, and returns the exit code.
    others: settings that it takes besides its own, as a search takes those of every experiment.
    """

    name: str
    title: str
    settings: type[Any]
    run: Callable[[Mapping[str, str]], int]
    presets: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    bare: tuple[str, ...] = ()
    others: tuple[type[Any], ...] = ()

    @property
    def fields(self) -> dict[str, dataclasses.Field[Any]]:
        """Every setting that a user may give, by its name."""
        kinds = (*self.others, self.settings)
        return {field.name: field for kind in kinds for field in settings_.for_users(kind)}

    @property
    def flags(self) -> set[str]:
        """Names of the settings that are true or false."""
        return {name for name, field in self.fields.items() if field.type in ("bool", bool)}


def available() -> list[str]:
    return [*studies.available(), *commands.available()]


def load(name: str) -> Entry:
    """Return an experiment or a command.

    Raises:
        WrongCall: with what there is, for a name that is neither.
    """
    if name not in commands.available():
        study = studies.load(name)
        return Entry(name, study.title, study.settings, partial(_run_study, name), study.presets)
    command = commands.load(name)
    others = (
        [studies.load(one).settings for one in studies.available()] if command.of_experiment else []
    )
    run = partial(_run_command, command)
    return Entry(
        name, command.title, command.settings, run, bare=command.bare, others=tuple(others)
    )


def _run_command(command: commands.Command, given: Mapping[str, str]) -> int:
    names = {field.name for field in dataclasses.fields(command.settings)}
    own = {name: text for name, text in given.items() if name in names or not command.of_experiment}
    settings = settings_.parse(command.settings, {}, own)
    rest = {name: text for name, text in given.items() if name not in own}
    return command.run(settings, rest) if command.of_experiment else command.run(settings)


def _run_study(name: str, given: Mapping[str, str]) -> int:
    from experiments.cli import campaign

    return campaign.run_study(name, given)
