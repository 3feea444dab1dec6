"""Preparation of a race: the environments of its levels, and what its cells are sent."""

from __future__ import annotations

import atexit
import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.config import durations
from experiments.config.race_file import Level, Race
from experiments.config.virtual_environments import differing as differing_packages
from experiments.contract import DatasetInfo, Job, Prepared, Progress, Workload
from experiments.planning import treatments
from experiments.studies import race as study
from experiments.studies.race import Settings
from experiments.workloads.command import environments, process_tree, reported
from experiments.workloads.command.environments import Environment
from models import frameworks
from tracking import provenance
from tracking.errors import ErrorCode, UsageError
from tracking.records import RunKind

# Of the time of a job: its start, and Slurm's notice of its end, which can come a minute early.
RESERVED_SECONDS = 180.0


def prepare(settings: Settings, progress: Progress) -> Prepared:
    """Return what every cell is sent. Raises UsageError for conditions that cannot be met."""
    race = study.race_of(settings)
    made = {name: _environment(name, race, settings, progress) for name in race.levels}
    definition = _definition(race, made)
    digest = hashlib.sha256(definition.encode()).hexdigest()
    info = DatasetInfo("", digest, "", {}, {})
    inputs = {
        name: _inputs(name, race, environment, settings) for name, environment in made.items()
    }
    before = [
        Job("warm_up", "", values, name, RunKind.WARM_UP, is_needed=False)
        for name, values in inputs.items()
        if not settings.cold
    ]
    folders = [
        folder
        for environment in made.values()
        for folder in (str(environment.cwd), environment.variables.get("VIRTUAL_ENV"))
    ]
    prepared = Prepared(
        info,
        {},
        tuple(before),
        files={"race.json": definition},
        folders=tuple(dict.fromkeys(filter(None, folders))),
    )
    differing = differing_packages(environment.packages for environment in made.values())
    of_treatment = {}
    for treatment in treatments.list_treatments(study.STUDY, settings):
        (name,) = treatment.settings["level"]
        tags = _tags(made[name], differing)
        of_treatment[treatment.name] = replace(prepared, inputs=inputs[name], tags=tags)
    return replace(prepared, of_treatment=of_treatment)


def _environment(name: str, race: Race, settings: Settings, progress: Progress) -> Environment:
    level = race.levels[name]
    cwd = (race.folder / Path(level.cwd).expanduser()).resolve()
    if not cwd.is_dir():
        raise UsageError(
            ErrorCode.NOT_FOUND, f"level {name}: there is no folder cwd={cwd}; name one that exists"
        )
    if settings.dry_run:  # it makes nothing
        return Environment(cwd, {}, {}, level.commit)
    if level.commit:
        atexit.register(environments.remove_worktrees, cwd)
    return environments.make(
        level,
        cwd=cwd,
        cache=Path(settings.cache),
        progress=lambda text: progress(text, 0, None),
        of_jobs=settings.on_cluster,
    )


def _timeout_seconds(name: str, level: Level, settings: Settings) -> float:
    """Return the longest time of a command, which on a cluster has to fit into a job.

    Raises:
        UsageError: If it does not.
    """
    timeout = durations.seconds(f"timeout of level {name}", level.timeout)
    if not settings.on_cluster:
        return timeout
    limit = durations.seconds("time_limit", settings.time_limit)
    longest = max(limit - RESERVED_SECONDS, limit / 8)
    if longest < timeout < math.inf:
        raise UsageError(
            ErrorCode.CONFLICT,
            f"level {name}: timeout={level.timeout} does not fit into jobs of "
            f"time_limit={settings.time_limit}, which leave {durations.format_duration(longest)} "
            "to a command; raise time_limit",
        )
    return min(timeout, longest)


def _inputs(name: str, race: Race, environment: Environment, settings: Settings) -> dict[str, Any]:
    """Return what the cells of a level are sent; it is not recorded, as it contains secrets."""
    level = race.levels[name]
    return {
        "name": name,
        "command": level.command,
        "cwd": str(environment.cwd),
        "variables": {**environment.variables, **level.env},
        "secrets": level.secrets,
        "timeout_seconds": _timeout_seconds(name, level, settings),
        "outcomes": {key: outcome.model_dump() for key, outcome in race.outcomes.items()},
    }


def _definition(race: Race, made: Mapping[str, Environment]) -> str:
    """Return the race as JSON, without secrets; equal for races that can be continued."""
    levels = {
        name: {
            **level.recorded,
            "commit": made[name].commit,
            "packages": dict(made[name].packages),
        }
        for name, level in race.levels.items()
    }
    values = race.model_dump(mode="json", exclude={"levels", "folder"})
    return json.dumps({"levels": levels, **values}, indent=1)


def _tags(environment: Environment, differing: Collection[str]) -> dict[str, str]:
    recorded = {*differing, "python"}
    if environment.variables:  # made for the command: what is in it was requested
        recorded |= {*frameworks.distributions(), *provenance.PACKAGES}
    tags = {
        f"version.{name}": version
        for name, version in environment.packages.items()
        if name in recorded
    }
    if environment.commit:
        head = environment.commit.partition("+")[0]
        tags |= {"level.commit": environment.commit, "mlflow.source.git.commit": head}
    return tags


WORKLOAD = Workload(
    prepare=prepare,
    after_cell=reported.collect_runs,
    end_leftovers=process_tree.end_leftovers,
)
