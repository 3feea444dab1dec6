"""Checks of a race, and what its cells are sent."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.config import durations
from experiments.config.race_file import Level, Race, masked
from experiments.contract import DatasetInfo, Job, Prepared, Progress, Workload
from experiments.studies import race as study
from experiments.studies.race import Settings
from experiments.workloads.command import script_runs
from tracking.errors import ErrorCode, UsageError
from tracking.records import RunKind


def prepare(settings: Settings, _: Progress) -> Prepared:
    """Return what every cell is sent. Raises UsageError for conditions that cannot be met."""
    race = study.race_of(settings)
    inputs = {name: _inputs(name, race) for name in race.levels}
    definition = _definition(race)
    digest = hashlib.sha256(definition.encode()).hexdigest()
    info = DatasetInfo("commands", digest, "race", {"levels": len(race.levels)}, {})
    before = [
        Job("warm_up", "", values, name, RunKind.WARM_UP, is_needed=False)
        for name, values in inputs.items()
        if not settings.cold
    ]
    prepared = Prepared(info, {}, tuple(before), files={"race.json": definition})
    of_treatment = {
        treatment.name: replace(prepared, inputs=inputs[treatment.settings["level"][0]])
        for treatment in study.treatments(settings)
    }
    return replace(prepared, of_treatment=of_treatment)


def _inputs(name: str, race: Race) -> dict[str, Any]:
    """Return what the cells of a level are sent; it is not recorded, as it contains secrets."""
    level = race.levels[name]
    cwd, variables = (race.folder / Path(level.cwd).expanduser()).resolve(), dict(level.env)
    if not cwd.is_dir():
        raise UsageError(
            ErrorCode.NOT_FOUND, f"level {name}: there is no folder cwd={cwd}; name one that exists"
        )
    return {
        "name": name,
        "command": level.command,
        "cwd": str(cwd),
        "variables": variables,
        "secrets": level.secrets,
        "timeout_seconds": durations.seconds("timeout", level.timeout),
        "outcomes": {key: outcome.model_dump() for key, outcome in race.outcomes.items()},
    }


def _definition(race: Race) -> str:
    """Return the race as JSON, with secrets masked."""
    levels = {name: _shown(level) for name, level in race.levels.items()}
    values = race.model_dump(mode="json", exclude={"levels", "folder"})
    return json.dumps({"levels": levels, **values}, indent=1)


def _shown(level: Level) -> dict[str, Any]:
    values = level.model_dump(mode="json", exclude={"env"})
    return {**values, "variables": masked(level.variables, level.secrets)}


WORKLOAD = Workload(prepare=prepare, after_cell=script_runs.collect)
