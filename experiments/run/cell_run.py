"""One cell as a run of its own: opened, measured in a fresh process, closed with its outcome."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments import studies
from experiments.config import devices, interpreters, variation
from experiments.config import settings as settings_
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import STOP
from experiments.contract import CellSpec, Job, Prepared, Treatment
from experiments.run.cell_process import CellProcess, Watch
from experiments.run.preparation import PreparedCampaign
from experiments.run.recorder import Recorder
from experiments.run.scheduler import CellResult, Skip
from models import frameworks
from models import own as own_models
from tracking import clock, provenance
from tracking.cpus import quota
from tracking.records import Artifact, DatasetUsed, RunClosed, RunKind, RunOpened, RunOutcome, Tags
from tracking.store import note, schema, source

# Settings that the name of a run has.
NAMED = 3


@dataclass(frozen=True)
class CellTask:
    """One process to be run.

    key: its folder among the journal's cells; name, tags: of its run, which the journal calls `run`.
    inputs: what only this process is sent.
    """

    treatment: Treatment
    key: str
    name: str
    tags: Mapping[str, str]
    inputs: Mapping[str, Any]
    block: int = 0
    run: str = field(default_factory=lambda: uuid.uuid4().hex)


def measure(
    recorder: Recorder, prepared: PreparedCampaign, task: CellTask, watch: Watch | None = None
) -> CellResult:
    """Open the run, listen to the process until it ends, close the run with its outcome."""
    recorder.begin(task.name)
    cell, began = open_run(recorder, prepared, task, watch=watch), time.monotonic()
    try:
        with recorder.sparing([task.treatment.merged(prepared.settings)]):
            closed = cell.run(sensor_seconds(prepared.settings, task.treatment), recorder.why_stop)
        closed = explain_end(recorder, prepared, task, cell, closed)
    except OSError as error:
        closed = failed(task.run, f"the cell could not be started: {error}")
    result = close_run(recorder, prepared, task, cell, closed, time.monotonic() - began)
    recorder.settle()
    return result


def extract(recorder: Recorder, prepared: PreparedCampaign, job: Job) -> bool:
    """Do a piece of work that cells need, in a process of its own. Return whether it ended well."""
    tags = {"kind": RunKind.EXTRACTION, "framework": job.framework}
    treatment = Treatment(job.framework, job.framework, job.stage)
    task = CellTask(
        treatment, f"extraction-{job.framework}", f"features · {job.framework}", tags, job.inputs
    )
    return measure(recorder, prepared, task).ok


def leave_out(recorder: Recorder, prepared: PreparedCampaign, task: CellTask, skip: Skip) -> None:
    """Give a cell that need not be run its run all the same: what it would have found is known."""
    recorder.check_stop()
    spec = cell_spec(recorder, prepared, task)
    task = dataclasses.replace(task, tags={**task.tags, **skip.tags})
    recorder.write(_run_opened(recorder, prepared, spec, task))
    recorder.write(RunClosed(spec.run, clock.now_ms(), skip.outcome, skip.reason[:1_000]))
    recorder.display.finish(f"{task.name}: {skip.outcome} ({skip.reason})")


def open_run(
    recorder: Recorder,
    prepared: PreparedCampaign,
    task: CellTask,
    *,
    watch: Watch | None = None,
    in_turns: bool = False,
) -> CellProcess:
    """Open the run of a cell whose process has still to be started."""
    spec = dataclasses.replace(cell_spec(recorder, prepared, task), in_turns=in_turns)
    recorder.write(_run_opened(recorder, prepared, spec, task))
    recorder.write(_dataset(spec.run, prepared.data_for(task.treatment)))
    recorder.wake()
    before = f"{task.treatment.name}: " if in_turns else ""

    def show(phase: str, done: int, total: int | None) -> None:
        recorder.display.step(f"{before}{phase}", done, total)

    return CellProcess(spec, recorder.write, show, watch)


def explain_end(
    recorder: Recorder,
    prepared: PreparedCampaign,
    task: CellTask,
    cell: CellProcess,
    closed: RunClosed,
) -> RunClosed:
    """Return how a cell ended, with what its parent knows of the reason."""
    spec = cell.spec
    recorder.write(Tags(spec.run, _note(recorder, prepared, spec, task, cell.latest)))
    if closed.outcome == RunOutcome.OK:
        return closed
    if recorder.full_disk:
        return failed(spec.run, recorder.full_disk)
    if STOP.number:
        return dataclasses.replace(
            closed, outcome=RunOutcome.INTERRUPTED, reason=recorder.why_stop()
        )
    if cell.pruned:
        return dataclasses.replace(closed, outcome=RunOutcome.PRUNED, reason=cell.pruned)
    recorder.write(Artifact(spec.run, f"{spec.folder}/output.log"))
    if closed.outcome == RunOutcome.OUT_OF_MEMORY and cell.phase:
        return dataclasses.replace(closed, reason=f"{cell.phase}: {closed.reason}")
    return closed


def close_run(
    recorder: Recorder,
    prepared: PreparedCampaign,
    task: CellTask,
    cell: CellProcess,
    closed: RunClosed,
    seconds: float,
) -> CellResult:
    """Record what others made of the machine, and the run's end; show it."""
    spec, phase = cell.spec, ""
    if closed.outcome == RunOutcome.OUT_OF_MEMORY:
        phases = task.treatment.settings.get("phases", ())
        phase = next((name for name in phases if name not in cell.timed), "")
        recorder.write(Tags(spec.run, {"phase": phase}))
    limit_percent = task.treatment.merged(prepared.settings).others_limit_percent
    disturbed = cell.background.log(spec.run, limit_percent, recorder.write)
    is_good = closed.outcome in (RunOutcome.OK, RunOutcome.PRUNED)
    if spec.stage == "train" and is_good:
        shutil.rmtree(spec.checkpoint, ignore_errors=True)
    if recorder.check_clock():
        recorder.write(Tags(spec.run, recorder.warning_tags))
    recorder.write(closed)
    reasons = "; ".join(filter(None, (closed.reason, disturbed)))
    why = f" ({reasons})" if reasons else ""
    recorder.display.finish(f"{task.name}: {closed.outcome}{why}, {seconds:.0f} s", good=is_good)
    metrics = cell.latest | cell.background.metrics
    return CellResult(
        RunOutcome(closed.outcome), phase, closed.reason, metrics, disturbed, "repeats" in task.tags
    )


def failed(run: str, reason: str) -> RunClosed:
    return RunClosed(run, clock.now_ms(), RunOutcome.FAILED, reason)


def cell_spec(recorder: Recorder, prepared: PreparedCampaign, task: CellTask) -> CellSpec:
    """Return all that the process of a cell is sent."""
    treatment = task.treatment
    settings = treatment.merged(prepared.settings)
    # a checkpoint goes on wherever that is
    not_sent = settings_.silent(settings) | settings_.of_group(settings, "cluster")
    return CellSpec(
        run=task.run,
        workload=prepared.module.workload,
        stage=treatment.stage,
        framework=treatment.framework,
        device=devices.resolve(settings.device, settings),
        threads=threads_of_cells(settings),
        block=task.block,
        settings={k: v for k, v in devices.values_of_cell(settings).items() if k not in not_sent},
        inputs=dict(task.inputs),
        journal=str(recorder.folder.resolve()),
        folder=f"cells/{task.key}/{task.run[:8]}",
        checkpoint=str(checkpoint_of(recorder.folder, task.key)),
        experiment=recorder.experiment,
        campaign=recorder.run_id,
        cpus=devices.cpus_of_cells(settings),
        nodes=recorder.nodes,
        environment=dict(treatment.environment),
        clock=clock.CLOCK.origin,
    )


def _run_opened(
    recorder: Recorder, prepared: PreparedCampaign, spec: CellSpec, task: CellTask
) -> RunOpened:
    settings, data = task.treatment.merged(prepared.settings), prepared.data_for(task.treatment)
    logged = logged_settings(prepared.settings, task.treatment)
    common = {
        "campaign": f"run:{recorder.run}",
        "model": own_models.labelled(
            task.treatment.settings.get("model") or prepared.module.models(settings)[0]
        ),
        "dataset": data.dataset.name,
        "settings_hash": settings_hash(logged, settings_.immaterial(settings)),
        **origin_tags(prepared.study, prepared.settings, spec.framework),
        **prepared.data.tags,
        **data.tags,
        **recorder.place_tags,
        **({} if settings.pin == "none" else devices.placement(settings).tags),
        **recorder.warning_tags,
    }
    name = task.name
    if task.tags["kind"] == RunKind.CELL:  # charts call cells of every campaign by their names
        left_out = settings_.immaterial(settings) | task.treatment.settings.keys()
        name = " · ".join(
            filter(
                None, [name, distinguishing_settings(prepared.study, prepared.settings, left_out)]
            )
        )
    params = {**logged, "framework": spec.framework}
    return RunOpened(
        spec.run, clock.now_ms(), recorder.experiment, name, {**common, **task.tags}, params
    )


def _note(
    recorder: Recorder,
    prepared: PreparedCampaign,
    spec: CellSpec,
    task: CellTask,
    latest: Mapping[str, float],
) -> dict[str, str]:
    """Return the run's description: what it was, its results, where it belongs."""
    from experiments.comparison.report import wording

    settings, data = task.treatment.merged(prepared.settings), prepared.data_for(task.treatment)
    outcomes = [
        outcome
        for outcome in studies.outcomes(prepared.module, settings)
        if outcome.metric in latest
    ]
    results = [
        f"- {outcome.label}: **{wording.quantity(latest[outcome.metric], outcome)}**"
        for outcome in outcomes
    ]
    where = f"on `{spec.device}` with {spec.threads} thread{'s' * (spec.threads != 1)}; data `{data.dataset.name}`"
    text = f"`{spec.framework}`, {spec.stage}, {where}."
    return note(
        "\n\n".join([text, "\n".join(results), *(f"⚠ {line}" for line in recorder.warnings)])
    )


def _dataset(run: str, data: Prepared) -> DatasetUsed:
    info = data.dataset
    return DatasetUsed(
        run,
        info.name,
        info.digest[:36],
        info.source,
        schema(info.columns),
        json.dumps(dict(info.counts)),
        "training",
    )


def checkpoint_of(folder: Path, key: str) -> Path:
    """Return where a cell of the campaign in this folder keeps its checkpoint."""
    return (folder / "cells" / key / "checkpoint").resolve()


def origin_tags(study: str, settings: CampaignSettings, framework: str = "") -> dict[str, str]:
    """Return who ran what where: the same on a campaign's run and on its cells'.

    framework: that of a cell, whose packages may be those of another interpreter.
    """
    commit, python = provenance.commit(), interpreters.separate(framework, settings.pythons)
    optional = {"commit": commit, "team": settings.team, "interpreter": python}
    return {
        "machine": provenance.fingerprint(),
        "environment": environment_digest(settings),
        **provenance.environment_tags(
            frameworks.distributions(), interpreters.packages(framework, python)
        ),
        **{name: text for name, text in optional.items() if text},
        **source(study, commit),
    }


def environment_digest(settings: CampaignSettings) -> str:
    """Return the same where machine and packages are, also those of other interpreters."""
    return provenance.environment_digest(
        frameworks.distributions(), interpreters.all_packages(settings.pythons)
    )


def distinguishing_settings(
    study: str, settings: CampaignSettings, left_out: Collection[str]
) -> str:
    """Return the first settings that are not the preset's, for the name of a run; empty if there is none."""
    module = studies.load(study)
    preset = settings_.parse(module.settings, module.presets, {"preset": settings.preset})
    shared = settings_.as_text(CampaignSettings())  # the study's own settings come first
    before, now = settings_.as_text(preset), settings_.as_text(settings)
    ordered = sorted(now, key=lambda name: name in shared)
    changed = {
        name: now[name] for name in ordered if now[name] != before[name] and name not in left_out
    }
    texts = [f"{name}={text or 'none'}" for name, text in list(changed.items())[:NAMED]]
    return ", ".join([*texts, *([f"{len(changed) - NAMED} more"] if len(changed) > NAMED else [])])


def threads_of_cells(settings: CampaignSettings) -> int:
    """Return the CPU threads of every framework alike: the number set, or one for each CPU that cells may use."""
    limit, free = quota(), len(devices.placement(settings).cells)
    return settings.threads or max(1, free if limit is None else min(free, math.floor(limit)))


def sensor_seconds(settings: CampaignSettings, treatment: Treatment) -> float:
    """Return the period of the sensors beside a treatment's cells; 0 if none are read."""
    return devices.sensor_seconds(treatment.merged(settings)) if treatment.sensed else 0.0


def logged_settings(campaign: CampaignSettings, treatment: Treatment) -> dict[str, str]:
    """Return what the runs of a treatment's cells log of their settings, as text."""
    settings = treatment.merged(campaign)
    silent = settings_.silent(settings)
    texts = {name: text for name, text in settings_.as_text(settings).items() if name not in silent}
    device, threads = devices.resolve(settings.device, settings), threads_of_cells(settings)
    own = {
        f"{variation.ENVIRONMENT}{name}": text or variation.UNSET
        for name, text in treatment.environment.items()
    }
    period = settings_.to_text(devices.sensor_seconds(settings))
    resolved = {
        "device": device,
        "threads": str(threads),
        "sensor_seconds": period,
        "timing": devices.timing(settings),
    }
    return {**texts, **own, **resolved}


def settings_hash(logged: Mapping[str, str], immaterial: Collection[str]) -> str:
    """Return the same where all settings but the compared ones are; what does not change a measurement is left out."""
    material = sorted(
        (k, v) for k, v in logged.items() if k not in immaterial and k != "inject_delay"
    )
    return hashlib.sha256(json.dumps(material).encode()).hexdigest()[:12]
