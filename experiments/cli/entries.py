"""Experiments and commands that a call can name, with their settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from experiments import studies
from experiments.cli import campaign, commands
from experiments.config.settings import for_users, parse
from tracking import plain
from tracking.errors import ErrorCode, UsageError, suggestion


@dataclass(frozen=True)
class Entry:
    """Experiment or command.

    run: gets the settings of the call as text, and returns the exit code.
    bare: settings whose values may be the first words of the call, without their names.
    others: further settings that it accepts, as a search accepts those of every experiment.
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
        kinds = (*self.others, self.settings)
        return {field.name: field for kind in kinds for field in for_users(kind)}


def available() -> list[str]:
    return [*studies.available(), *commands.available()]


def load(name: str) -> Entry:
    """Return an experiment or a command.

    Raises:
        UsageError: for an unknown name, with those that exist.
    """
    if name not in available():
        right = suggestion(name, available(), "evenhand --help")
        raise UsageError(
            ErrorCode.UNKNOWN_NAME, f"no experiment or command '{plain.short(name)}'{right}"
        )
    if name not in commands.available():
        study = studies.load(name)
        run = partial(campaign.run_study, name)
        return Entry(name, study.title, study.settings, run, study.presets)
    command = commands.load(name)
    with_others = studies.available() if command.of_experiment else ()
    return Entry(
        name,
        command.title,
        command.settings,
        partial(_run_command, command),
        bare=command.bare,
        others=tuple(studies.load(study).settings for study in with_others),
    )


def _run_command(command: commands.Command, texts: Mapping[str, str]) -> int:
    names = {field.name for field in dataclasses.fields(command.settings)}
    from experiments.config import interpreters
    from experiments.config.console import Display

    of_folder = interpreters.read_setup() if "pythons" in names else {}
    options = {name: texts[name] for name in names & texts.keys()}
    settings = parse(command.settings, {}, options, of_folder)
    with Display() as display:
        if not command.of_experiment:
            return command.run(settings, display)
        others = {name: text for name, text in texts.items() if name not in names}
        return command.run(settings, others, display)
