"""Race: any command against any other. The levels are the user's own commands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from experiments.config.settings import CampaignSettings, campaign_setting, parameter, setting
from experiments.contract import Study, Treatment
from experiments.metrics import Outcome, outcome
from experiments.planning.treatments import controls
from tracking.errors import ErrorCode, UsageError

if TYPE_CHECKING:
    from experiments.config.race_file import Race, ReportedOutcome
else:  # it imports pydantic, which help does not need
    Race = ReportedOutcome = object


@dataclass(frozen=True)
class Settings(CampaignSettings):
    """Settings of a race; the command and its variables, without secrets, are those of a cell."""

    not_offered = frozenset(
        {
            "frameworks",
            "levels",
            "conv_algorithm",
            "threads",
            "timing",
            "window_steps",
            "pythons",
            "malloc",
            "allow_unequal",
            "protocol",
        }
    )

    level: tuple[str, ...] = campaign_setting(
        (),
        "NAME='COMMAND', once for each command; the first is the baseline",
        group="race",
        repeatable=True,
    )
    file: str = campaign_setting(
        "",
        "race.toml: commands with their conditions, and outcomes that they report",
        path=True,
        group="race",
    )
    timeout: str = campaign_setting(
        "none", "longest time of a command, such as 90s, 30m or 2h; none: no limit", group="race"
    )
    cold: bool = setting(
        False,
        "leave out the run of every command before block 1, which warms caches",
        group="race",
        searchable=False,
    )
    command: str = parameter("", "level", "file")
    variables: str = parameter("", "file")
    frameworks: tuple[str, ...] = setting((), "none: commands are compared", group="race")
    timing: str = setting("step", "commands have no steps", choices=("step",), group="race")


def race_of(settings: Settings) -> Race:
    """Return the commands and outcomes of a race. Raises UsageError."""
    from experiments.config import race_file

    return race_file.load(settings.file, settings.level, settings.timeout)


def treatments(settings: Settings) -> tuple[Treatment, ...]:
    """Return every command, then the controls of the first.

    Raises:
        UsageError: For what a race cannot do, and for mistakes in its commands.
    """
    if settings.pairing == "interleaved":
        raise UsageError(
            ErrorCode.UNSUPPORTED,
            "pairing=interleaved: a command runs as a whole and takes no turns; leave it out",
        )
    levels = []
    for name, level in race_of(settings).levels.items():
        recorded = level.recorded
        values = {
            "level": (name,),
            "command": recorded["command"],
            "variables": recorded["variables"],
            "inject_delay": 0.0,
        }
        levels.append(Treatment(name, "", "run", values))
    return (*levels, *controls(settings, levels[0]))


def title(settings: Settings) -> str:
    """Return the names of the levels, the baseline last."""
    baseline, *others = race_of(settings).levels
    return f"{', '.join(others)} against {baseline}" if others else baseline


def reported_outcomes(settings: Settings) -> tuple[Outcome, ...]:
    """Return the outcomes that the file declares, by the catalogue's rules for their names."""
    return tuple(rules(name, declared) for name, declared in race_of(settings).outcomes.items())


def rules(name: str, declared: ReportedOutcome) -> Outcome:
    """Return the rules of an outcome: those declared, else those of the catalogue for its name."""
    by_name = outcome(name)
    if declared.kind not in (None, by_name.kind):
        by_name = replace(by_name, kind=declared.kind, margin=None, share=False)
    if declared.margin is not None:
        by_name = replace(by_name, margin=declared.margin, share=False)
    return replace(by_name, better=declared.better, unit=declared.unit or by_name.unit)


STUDY = Study(
    name="race",
    title="Any command against any other",
    workload="command",
    settings=Settings,
    models=lambda _: (),
    factor="level",
    treatments=treatments,
    allowed_to_differ=("command", "variables"),
    reported=reported_outcomes,
    primary_of=lambda settings: race_of(settings).primary,
    title_of=title,
    source_of=lambda settings: race_of(settings).folder,
    presets={"demo": {}},
    outcomes=(
        outcome("wall_seconds"),
        outcome("cpu/user_seconds"),
        outcome("cpu/system_seconds"),
        outcome("memory/peak_tree_bytes"),
        outcome("energy/joules"),
        outcome("power/watts_mean"),
        outcome("cpu/utilization_percent_mean"),
        outcome("gpu/utilization_percent_mean"),
        outcome("memory/peak_device_process_bytes"),
    ),
    primary=("wall_seconds",),
)
