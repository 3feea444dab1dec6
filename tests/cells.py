"""Cells of the studies without a campaign."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments import studies, workloads
from experiments.config import devices
from experiments.config.settings import OTHERS_LIMIT_PERCENT
from experiments.contract import AnyCell, CellSpec
from experiments.planning import treatments
from experiments.run.cell_process import CellProcess
from tracking.cpus import quota
from tracking.records import LOADS, Record, RunOutcome, Tags, to_line

RECORDS = "records.jsonl"
SENSOR_SECONDS = 0.1


@dataclass(frozen=True)
class CellOutcome:
    """Outcome of a cell without a campaign, and the latest value of each of its metrics.

    phase: in which it ran out of memory, or empty. disturbed: use of the machine by others, if that
    was more than the limit.
    """

    outcome: RunOutcome
    phase: str = ""
    reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    disturbed: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome == RunOutcome.OK


def run(
    folder: Path, study: str, framework: str, device: str, *, block: int = 1, **values: Any
) -> CellOutcome:
    """Run a cell of a study's first treatment, with its records in the folder.

    Args:
        folder: for the files of the cell.
        study: name of the study.
        framework: of the cell.
        device: of the cell.
        block: number of the block, which is part of the seed.
        **values: settings of the study.

    Raises:
        UsageError: for settings with which the study cannot run.
    """
    spec = cell_spec(folder, study, framework, device, block, values)
    spec.path.mkdir(parents=True)
    with (spec.path / RECORDS).open("w", encoding="utf-8") as file:

        def write(record: Record) -> None:
            file.write(to_line(record) + "\n")

        cell = CellProcess(spec, write)
        closed, phase = cell.run(SENSOR_SECONDS), ""
        if closed.outcome == RunOutcome.OUT_OF_MEMORY:
            phases = getattr(spec.settings, "phases", ())
            phase = next((name for name in phases if name not in cell.timed), cell.phase)
            write(Tags(spec.run, {"phase": phase}))
        idle = dict.fromkeys(LOADS, 0.0)
        disturbed = cell.background.log(spec.run, idle, OTHERS_LIMIT_PERCENT, write)
        write(closed)
    metrics = {**cell.latest, **cell.background.metrics}
    return CellOutcome(RunOutcome(closed.outcome), phase, closed.reason, metrics, disturbed)


def cell_spec(
    folder: Path, study: str, framework: str, device: str, block: int, values: dict[str, Any]
) -> AnyCell:
    """Return a cell of a study's first treatment; arguments as those of `run`."""
    module = studies.load(study)
    settings = module.settings(
        **{"frameworks": (framework,), "device": device, "cache": str(folder / "cache")} | values
    )
    prepared = workloads.load(module.workload).prepare(settings, lambda *_: None)
    treatment = treatments.list_treatments(module, settings)[0]
    merged = treatment.merged(settings)
    run_id = uuid.uuid4().hex
    cpus, limit = len(devices.own_cpus()), quota()
    threads = cpus if limit is None else min(cpus, int(limit))
    return CellSpec(
        run=run_id,
        workload=module.workload,
        stage=treatment.stage,
        framework=treatment.framework,
        device=device,
        threads=merged.threads or max(1, threads),
        block=block,
        settings=replace(merged, timing=devices.timing(merged)),
        inputs=dict(prepared.of_treatment.get(treatment.name, prepared).inputs),
        journal=str(folder.resolve()),
        folder=f"cells/{study}-{framework}-{run_id[:8]}",
        checkpoint=str(folder.resolve() / f"checkpoint-{run_id[:8]}"),
        environment=dict(treatment.environment),
        study=study,
    )
