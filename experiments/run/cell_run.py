"""Run of one cell: opened, measured in a fresh process, closed with its outcome."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments import studies, workloads
from experiments.config import devices, interpreters, variation, virtual_environments
from experiments.config.settings import (
    CLUSTER,
    CampaignSettings,
    as_text,
    names_not_affecting_measurement,
    not_logged_names,
    parse,
    to_text,
)
from experiments.config.stopping import STOP
from experiments.contract import (
    OUTLIVED,
    AnyCell,
    CellSpec,
    DatasetInfo,
    Job,
    Node,
    RunStore,
    Treatment,
)
from experiments.run.cell_process import CellProcess, Watch
from experiments.run.prepared import PreparedCampaign
from experiments.run.recorder import Recorder
from experiments.run.scheduler import CellResult, Skip
from experiments.run.sensing import write_metrics
from experiments.workloads.steps import choices
from models import frameworks
from models import own as own_models
from tracking import clock, provenance
from tracking.cpus import quota
from tracking.journal import write_atomically
from tracking.links import schema, source
from tracking.reader import Unreachable
from tracking.records import (
    Artifact,
    DatasetUsed,
    Record,
    RunClosed,
    RunKind,
    RunOpened,
    RunOutcome,
    Tags,
)
from tracking.store import note

METRICS = "metrics.json"
# Of the name of a run: settings, characters of a value, and what stands between its parts.
MAX_NAMED_SETTINGS, MAX_VALUE_CHARACTERS = 3, 40
PARTS = " · "


@dataclass(frozen=True)
class CellTask:
    """Process to be run.

    Attributes:
        key: Name of its folder among the journal's cells.
        name: Of its run, which the journal calls `run`; tags: of it.
        inputs: What this process is sent besides the settings.
        usual_loads: Load by others during the other cells, see `Schedule.usual_loads`.
    """

    treatment: Treatment
    key: str
    name: str
    tags: Mapping[str, str]
    inputs: Mapping[str, Any]
    block: int = 0
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    usual_loads: Mapping[str, float] = field(default_factory=dict)


class CellRun:
    """Open run of a cell whose process has still to be started."""

    def __init__(
        self,
        recorder: Recorder,
        prepared: PreparedCampaign,
        task: CellTask,
        *,
        watch: Watch | None = None,
        in_turns: bool = False,
    ) -> None:
        self.task, self._recorder, self._prepared = task, recorder, prepared
        self.settings = task.treatment.merged(prepared.settings)
        self._data = prepared.data_for(task.treatment)
        self._began = time.monotonic()
        spec = cell_spec(prepared, task, recorder.folder, recorder.nodes)
        self._workload = workloads.load(spec.workload)
        if self._workload.after_cell:
            environment = {**spec.environment, **recorder.variables_of_scripts(spec.run)}
            spec = replace(spec, environment=environment)
        self.spec = replace(spec, in_turns=in_turns)
        self._opened = _run_opened(recorder, prepared, self.spec, task)
        recorder.write(self._opened)
        if self._data.dataset.name:
            recorder.write(dataset_used(self.spec.run, self._data.dataset))
        recorder.wake()
        prefix = f"{task.treatment.name}: " if in_turns else ""

        def show(phase: str, done: int, total: int | None) -> None:
            recorder.display.step(f"{prefix}{phase}", done, total)

        self.process = CellProcess(self.spec, recorder.write, show, watch)
        self.sensor_seconds = devices.sensor_seconds(task.treatment.merged(prepared.settings))

    def explain(self, closed: RunClosed) -> RunClosed:
        """Return the end of the run, with the reason as far as the parent has one."""
        recorder, spec, process = self._recorder, self.spec, self.process
        if closed.outcome == RunOutcome.OK:
            return closed
        if recorder.full_disk:
            return replace(closed, outcome=RunOutcome.FAILED, reason=recorder.full_disk)
        if STOP.number:
            reason = recorder.why_stop()
            return replace(closed, outcome=RunOutcome.INTERRUPTED, reason=reason)
        if process.pruned:
            return replace(closed, outcome=RunOutcome.PRUNED, reason=process.pruned)
        recorder.write(Artifact(spec.run, f"{spec.folder}/output.log"))
        if closed.outcome == RunOutcome.OUT_OF_MEMORY and process.phase:
            return replace(closed, reason=f"{process.phase}: {closed.reason}")
        return closed

    def close(self, closed: RunClosed) -> CellResult:
        """Record the load by others and the run's end; show it."""
        recorder, spec, process = self._recorder, self.spec, self.process
        if closed.outcome != RunOutcome.OK:
            if self._workload.end_leftovers and (text := self._workload.end_leftovers(spec.path)):
                recorder.write(Tags(spec.run, {OUTLIVED: text}))
        elif not recorder.is_part:
            self.process.latest |= record_script_results(
                spec.workload, spec.run, spec.inputs, recorder.store, recorder.write
            )
        phase = ""
        if closed.outcome == RunOutcome.OUT_OF_MEMORY:
            phases = self.task.treatment.settings.get("phases", ())
            phase = next((name for name in phases if name not in process.timed), "")
            recorder.write(Tags(spec.run, {"phase": phase}))
        limit_percent = self.settings.others_limit_percent
        disturbed = process.background.log(
            spec.run, self.task.usual_loads, limit_percent, recorder.write
        )
        if disturbed:
            name = f"{self._opened.name}{PARTS}disturbed"
            recorder.write(Tags(spec.run, {"mlflow.runName": name}))
        is_good = closed.outcome in (RunOutcome.OK, RunOutcome.PRUNED)
        if spec.stage == "train" and is_good:
            shutil.rmtree(spec.checkpoint, ignore_errors=True)
        if recorder.check_clock():
            recorder.write(Tags(spec.run, recorder.warning_tags))
        metrics = process.latest | process.background.metrics
        if metrics:
            _keep_metrics(spec.run, recorder.folder, spec.folder, metrics, recorder.write)
        recorder.write(closed)
        reasons = "; ".join(filter(None, (closed.reason, disturbed)))
        why = f" ({reasons})" if reasons else ""
        seconds = time.monotonic() - self._began
        line = f"{self.task.name}: {closed.outcome}{why}, {seconds:.0f} s"
        recorder.display.finish(line, good=is_good)
        return CellResult(
            RunOutcome(closed.outcome),
            phase,
            closed.reason,
            metrics,
            disturbed,
            "repeats" in self.task.tags,
        )


def record_script_results(
    workload: str,
    run: str,
    inputs: Mapping[str, Any],
    store: RunStore,
    write: Callable[[Record], None],
) -> Mapping[str, float]:
    """Record what the program of a cell has logged in MLflow by itself. Return its metrics.

    Args:
        workload: Of the cell.
        run: Of the cell.
        inputs: That the cell was sent.
        store: Tracking server of the program.
        write: Takes the records.
    """
    after_cell = workloads.load(workload).after_cell
    if not after_cell:
        return {}
    try:
        metrics, tags = after_cell(run, inputs, store)
    except Unreachable as error:
        metrics, tags = {}, {"not_available.script_runs": str(error)[:200]}
    write_metrics(run, metrics, write)
    if tags:
        write(Tags(run, dict(tags)))
    return metrics


def record_script_results_of_job(
    prepared: PreparedCampaign,
    opened: RunOpened,
    journal: Path,
    store: RunStore,
    write: Callable[[Record], None],
) -> None:
    """Record what the program of a job's cell has logged in MLflow, for a node without network.

    Args:
        prepared: The campaign.
        opened: Run of the cell, which succeeded.
        journal: Folder of the campaign.
        store: Tracking server.
        write: Takes the records.
    """
    inputs = {
        treatment.name: prepared.data_for(treatment).inputs
        for treatment in prepared.plan.treatments
    }
    name, key = opened.tags.get("treatment"), opened.tags.get("cell")
    if name not in inputs or not key:
        return
    workload = prepared.module.workload
    metrics = record_script_results(workload, opened.run, inputs[name], store, write)
    if metrics:
        folder = folder_of(key, opened.run)
        with suppress(OSError, ValueError):
            recorded = json.loads((journal / folder / METRICS).read_bytes())
            _keep_metrics(opened.run, journal, folder, {**recorded, **metrics}, write)


def _keep_metrics(
    run: str,
    journal: Path,
    folder: str,
    metrics: Mapping[str, float],
    write: Callable[[Record], None],
) -> None:
    """Record the file of all metrics, for persons: MLflow does not show each."""
    values = {
        key: value if math.isfinite(float(value)) else str(value)
        for key, value in sorted(metrics.items())
    }
    with suppress(OSError):  # a full disk, which the journal reports
        write_atomically(journal / folder / METRICS, json.dumps(values, indent=1))
        write(Artifact(run, f"{folder}/{METRICS}"))


def folder_of(key: str, run: str) -> str:
    """Return the folder of a cell's run below the campaign's."""
    return f"cells/{key}/{run[:8]}"


def measure(
    recorder: Recorder, prepared: PreparedCampaign, task: CellTask, watch: Watch | None = None
) -> CellResult:
    """Open the run, run the process to its end, and close the run with its outcome."""
    recorder.begin(task.name)
    cell = CellRun(recorder, prepared, task, watch=watch)
    try:
        with recorder.sparing():
            closed = cell.process.run(cell.sensor_seconds, recorder.why_stop)
        closed = cell.explain(closed)
    except OSError as error:
        reason = f"the cell could not be started: {error}"
        closed = RunClosed(task.run, clock.now_ms(), RunOutcome.FAILED, reason)
    result = cell.close(closed)
    recorder.settle()
    return result


def extract(recorder: Recorder, prepared: PreparedCampaign, job: Job) -> bool:
    """Run a job that cells need, in a separate process. Return True if it succeeded."""
    name = job.name or job.framework
    tags = {"kind": job.kind, "framework": job.framework}
    treatment = Treatment(name, job.framework, job.stage)
    title = "features" if job.kind == RunKind.EXTRACTION else job.kind.replace("_", "-")
    task = CellTask(treatment, f"{job.kind}-{name}", f"{title} · {name}", tags, job.inputs)
    return measure(recorder, prepared, task).ok


def leave_out(recorder: Recorder, prepared: PreparedCampaign, task: CellTask, skip: Skip) -> None:
    """Record a run for a cell that is not run because its result is known."""
    recorder.check_stop()
    spec = cell_spec(prepared, task, recorder.folder)
    task = replace(task, tags={**task.tags, **skip.tags})
    recorder.write(_run_opened(recorder, prepared, spec, task))
    recorder.write(RunClosed(spec.run, clock.now_ms(), skip.outcome, skip.reason[:1_000]))
    recorder.display.finish(f"{task.name}: {skip.outcome} ({skip.reason})")


def dataset_used(run: str, info: DatasetInfo) -> DatasetUsed:
    columns, counts = schema(info.columns), json.dumps(dict(info.counts))
    return DatasetUsed(run, info.name, info.digest[:36], info.source, columns, counts, "training")


def cell_spec(
    prepared: PreparedCampaign, task: CellTask, journal: Path, nodes: tuple[Node, ...] = ()
) -> AnyCell:
    treatment = task.treatment
    settings = treatment.merged(prepared.settings)
    return CellSpec(
        run=task.run,
        workload=prepared.module.workload,
        stage=treatment.stage,
        framework=treatment.framework,
        device=devices.resolve(settings.device, settings),
        threads=_threads(settings),
        block=task.block,
        settings=replace(settings, timing=devices.timing(settings)),
        inputs=dict(task.inputs),
        journal=str(journal.resolve()),
        folder=folder_of(task.key, task.run),
        checkpoint=str(checkpoint_of(journal, task.key)),
        cpus=devices.cpus_of_cells(settings),
        nodes=nodes,
        environment=dict(treatment.environment),
        clock=clock.CLOCK.origin,
        study=prepared.study,
    )


def _run_opened(
    recorder: Recorder, prepared: PreparedCampaign, spec: AnyCell, task: CellTask
) -> RunOpened:
    treatment = task.treatment
    settings, data = treatment.merged(prepared.settings), prepared.data_for(treatment)
    logged = logged_settings(prepared.settings, treatment)
    not_affecting = names_not_affecting_measurement(settings)
    model = treatment.settings.get("model") or next(iter(prepared.module.models(settings)), "")
    tags = {
        "campaign": f"run:{recorder.run}",
        "mlflow.parentRunId": f"run:{recorder.run}",
        **_description(recorder, task, [model, data.dataset.name]),
        "model": own_models.labelled(model),
        "dataset": data.dataset.name,
        "settings_hash": settings_hash(logged, not_affecting),
        **origin_tags(prepared.study, prepared.settings, treatment),
        **prepared.data.tags,
        **data.tags,
        **recorder.place_tags,
        **({} if settings.pin == "none" else {"pinned.cell": ",".join(map(str, spec.cpus))}),
        **recorder.warning_tags,
        **task.tags,
    }
    name = task.name
    if tags["kind"] == RunKind.CELL:  # charts label cells of every campaign by their names
        left_out = not_affecting | treatment.settings.keys()
        different = distinguishing_settings(prepared.study, prepared.settings, left_out)
        name = PARTS.join(filter(None, [name, different]))
    params = {
        name: text
        for name, text in {**logged, "framework": spec.framework}.items()
        if text and name not in not_logged(settings)
    }
    tags = {name: text for name, text in tags.items() if text}  # commands have no framework
    return RunOpened(spec.run, clock.now_ms(), recorder.experiment, name, tags, params)


def _description(recorder: Recorder, task: CellTask, work: Sequence[str]) -> dict[str, str]:
    """Return the description that the page of a run shows.

    Args:
        work: Names of network and data, as far as there are any.
    """
    place = f" in block {task.block}" if task.block else ""
    what = " on ".join(f"`{name}`" for name in work if name)
    ran = f"{place}: {what}" if what else place
    return note(
        f"`{task.treatment.name}`{ran}, run once in a separate process. "
        f"It is part of [this run](#/runs/{recorder.run_id}), which has the result."
    )


def checkpoint_of(folder: Path, key: str) -> Path:
    return (folder / "cells" / key / "checkpoint").resolve()


def origin_tags(
    study: str, settings: CampaignSettings, treatment: Treatment | None = None
) -> dict[str, str]:
    """Return tags of machine, packages, code and team, for a campaign's run and its cells' runs.

    Args:
        study: Name of the experiment.
        settings: Of the campaign.
        treatment: Of a cell, whose packages may be those of another interpreter.
    """
    folder = source_folder(study, settings)
    commit, python, packages = provenance.commit(folder), "", interpreters.packages("", "")
    if folder:  # a command may run in any environment; its workload records which
        packages = {}
    elif treatment:
        framework = treatment.framework
        python = interpreters.separate(framework, treatment.merged(settings).pythons)
        packages = interpreters.packages(framework, python)
        if treatment.version:
            packages = {**packages, **_packages_of_level(settings, framework, python)}
    optional = {"commit": commit, "team": settings.team, "interpreter": python}
    if folder:
        optional["evenhand.commit"] = provenance.commit()
    return {
        "machine": provenance.fingerprint(),
        "environment": environment_digest(settings),
        **provenance.environment_tags(frameworks.distributions(), packages),
        **{name: text for name, text in optional.items() if text},
        **source(study, commit, "" if treatment else provenance.changes(folder), folder),
    }


def source_folder(study: str, settings: CampaignSettings) -> Path | None:
    """Return the folder of the measured code, None for this project."""
    source_of = studies.load(study).source_of
    return source_of(settings) if source_of else None


def environment_digest(settings: CampaignSettings) -> str:
    """Return the tag `environment`, which covers every separate interpreter."""
    of_versions = interpreters.installed if settings.levels else interpreters.packages
    packages = {
        " ".join(filter(None, [framework, version])): of_versions(framework, python)
        for version, pythons in virtual_environments.interpreters_by_version(settings).items()
        for framework, python in interpreters.parse(pythons).items()
    }
    return provenance.environment_digest(frameworks.distributions(), packages)


def _packages_of_level(
    settings: CampaignSettings, framework: str, python: str
) -> Mapping[str, str]:
    """Return the versions of the packages that differ between the levels of `levels`."""
    installed = [
        interpreters.installed(framework, interpreters.separate(framework, pythons))
        for pythons in virtual_environments.interpreters_by_version(settings).values()
    ]
    different = virtual_environments.differing(installed)
    versions = interpreters.installed(framework, python)
    return {name: version for name, version in versions.items() if name in different}


def distinguishing_settings(
    study: str, settings: CampaignSettings, left_out: Collection[str]
) -> str:
    """Return the first settings that differ from the preset's, for the name of a run."""
    module = studies.load(study)
    presets = studies.presets_on(module, devices.resolve_all(settings))
    preset = parse(module.settings, presets, {"preset": settings.preset})
    shared = as_text(CampaignSettings())  # the study's own settings come first
    before, now = as_text(preset), as_text(settings)
    length = "steps_per_epoch"
    if now.get("training_seconds", "0") != "0" and int(now[length]) in choices(int(before[length])):
        left_out = {*left_out, length}  # chosen, not set
    if float(now.get("phase_seconds", "0")):
        left_out = {*left_out, "epochs", "inference_requests"}
    texts = [
        _short_setting(name, now[name])
        for name in sorted(now, key=lambda name: name in shared)
        if now[name] != before[name] and name not in left_out
    ]
    if (more := len(texts) - MAX_NAMED_SETTINGS) > 0:
        texts[MAX_NAMED_SETTINGS:] = [f"{more} more"]
    return PARTS.join(texts)


def _short_setting(name: str, text: str) -> str:
    if name == "vary":
        name, _, text = text.partition("=")
    if len(text) > MAX_VALUE_CHARACTERS:  # the end of a path says more than its beginning
        text = f"…{text[-MAX_VALUE_CHARACTERS:]}"
    return f"{name}={text or 'none'}"


def _threads(settings: CampaignSettings) -> int:
    limit, cpus = quota(), len(devices.cpus_of_cells(settings))
    return settings.threads or max(1, cpus if limit is None else min(cpus, math.floor(limit)))


def not_logged(settings: CampaignSettings) -> frozenset[str]:
    """Return the settings that are no params of runs: places, and what a command does not have."""
    names = not_logged_names(settings)
    if not settings.frameworks:
        names |= settings.not_offered
        names |= frozenset() if settings.on_cluster else CLUSTER
    return names


def logged_settings(campaign: CampaignSettings, treatment: Treatment) -> dict[str, str]:
    """Return the settings that the runs of a treatment's cells log, as text."""
    settings = treatment.merged(campaign)
    not_logged = not_logged_names(settings)
    texts = as_text(settings).items()
    return {
        **{name: text for name, text in texts if name not in not_logged},
        **{
            f"{variation.ENVIRONMENT}{name}": text or variation.UNSET
            for name, text in treatment.environment.items()
        },
        **({variation.VERSION: treatment.version} if treatment.version else {}),
        "device": devices.resolve(settings.device, settings),
        "threads": str(_threads(settings)),
        "sensor_seconds": to_text(devices.sensor_seconds(settings)),
        "timing": devices.timing(settings),
    }


def settings_hash(logged: Mapping[str, str], not_affecting: Collection[str]) -> str:
    """Return a digest of the settings that can change a measurement, without the compared ones."""
    left_out = {*not_affecting, "inject_delay"}
    affecting = sorted((name, text) for name, text in logged.items() if name not in left_out)
    return hashlib.sha256(json.dumps(affecting).encode()).hexdigest()[:12]
