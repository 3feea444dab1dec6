"""The parent: a fresh process for every cell, in random blocks, every record to the journal, then to MLflow."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from experiments import design, treatments
from experiments import settings as settings_
from experiments.comparison.gates import IMMATERIAL
from experiments.console import Display
from experiments.design import Cell
from experiments.frontier import Frontier
from experiments.process import Child
from experiments.settings import CampaignSettings
from experiments.treatments import Treatment
from experiments.workloads.contract import CellSpec, Job, Prepared
from tracking import journal, provenance, sensors
from tracking.errors import EvenhandError, WrongCall
from tracking.journal import Journal, JournalError
from tracking.records import (
    BETWEEN_WARNINGS,
    Artifact,
    DatasetUsed,
    Kind,
    Metrics,
    Outcome,
    Point,
    Record,
    RunClosed,
    RunOpened,
    Tags,
)
from tracking.sensors import Sampler
from tracking.store import Store, note, schema, source
from tracking.upload import Uploader

LISTEN_SECONDS = 0.2
SENSORS_A_RECORD = 8
SILENT = frozenset({"journal", "cache", "resume"})


class Interrupted(EvenhandError):
    """The user or the system asked the campaign to stop."""


class Campaign:
    """One launch of a study. Built by `start` or `resume`; `run` does the work; `close` ends its run whatever happened."""

    def __init__(self, study: str, settings: CampaignSettings, prepared: Prepared, records: Journal, display: Display):
        kept = journal.read_campaign(records.folder)
        run_id: str = kept["run_id"]
        self.study, self.settings, self.prepared, self.run_id = study, settings, prepared, run_id
        self.experiment: str = kept["experiment"]
        self.warnings = list(prepared.warnings)
        self._module: ModuleType = importlib.import_module(f"experiments.studies.{study}")
        self._journal, self._run, self._display = records, kept["run"], display
        self.treatments = {one.name: one for one in treatments.of(self._module, settings)}
        self.device = resolve_device(settings.device)
        self._threads = settings.threads or os.cpu_count() or 1
        self.store = Store()
        self._uploader = Uploader(records, self.store, run_id)
        self._uploader.start()
        self._frontier = Frontier(getattr(self._module, "FRONTIER", ""))
        self._stop_signal = ""
        self._full_disk = ""
        self._trouble_told = False

    # ---- the whole

    def run(self) -> bool:
        """What comes before the blocks, then every cell that is not there yet. True if all ended well."""
        with self._signals():
            ended = ended_cells(self._journal.folder)
            counted = {Outcome.OK, Outcome.OUT_OF_MEMORY} if self._frontier.along else {Outcome.OK}
            done = {key for key, outcome in ended.items() if outcome in counted}
            self._remember_what_did_not_fit(ended)
            cells = [cell for cell in self._plan() if cell.key not in done]
            self._warn(self.prepared.warnings)
            self._display.expect(len(self.prepared.before) + len(cells))
            results = []
            for job in self.prepared.before:
                results.append(self._job(job))
                if job.framework == self.settings.frameworks[0] and not results[-1]:
                    raise EvenhandError("the baseline's feature extraction failed, which all cells need; the reason stands above")
            self._warn(self._after_extraction())
            results += [self._cell(cell) for cell in cells]
        return all(results)

    def _plan(self) -> list[Cell]:
        rng = np.random.default_rng([self.settings.seed, 1])
        return design.blocks(treatments.groups(self.treatments.values()), self.settings.blocks, rng)

    @property
    def baseline(self) -> str:
        """The level that the others are judged against: the first treatment, or its framework where that is the factor."""
        first = next(iter(self.treatments.values()))
        return first.framework if first.group else first.name

    def _after_extraction(self) -> tuple[str, ...]:
        prepare = importlib.import_module(f"experiments.workloads.{self._module.WORKLOAD}.prepare")
        found: tuple[str, ...] = prepare.after_extraction(self.settings, self.prepared)
        return found

    def _warn(self, warnings: tuple[str, ...]) -> None:
        self.warnings += [warning for warning in warnings if warning not in self.warnings]
        for warning in warnings:
            self._display.say(f"! {warning}", style="bold yellow")
        if warnings:
            self.write(Tags(self._run, {"warnings": BETWEEN_WARNINGS.join(self.warnings)}))

    # ---- one process

    def _job(self, job: Job) -> bool:
        tags = {"kind": Kind.EXTRACTION, "framework": job.framework}
        name = f"features · {job.framework}"
        treatment = Treatment(job.framework, job.framework, job.stage)
        spec = self._spec(treatment, 0, f"extraction-{job.framework}", job.inputs)
        return self._measured(spec, treatment, name, tags) == Outcome.OK

    def _cell(self, cell: Cell) -> bool:
        treatment = self.treatments[cell.treatment]
        tags = {
            "kind": Kind.CELL,
            "framework": treatment.framework,
            "treatment": treatment.name,
            "block": str(cell.block),
            "order_in_block": str(cell.order_in_block),
            **({"control": treatment.control} if treatment.control else {}),
        }
        spec = self._spec(treatment, cell.block, cell.key, self.prepared.inputs)
        name, tags = f"{treatment.name} · block {cell.block}", {**tags, "cell": cell.key}
        if reason := self._frontier.implied(treatment):
            return self._left_out(spec, treatment, name, tags, reason)
        outcome = self._measured(spec, treatment, name, tags)
        if outcome == Outcome.OUT_OF_MEMORY:
            self._frontier.note(treatment)
            return bool(self._frontier.along)
        return outcome == Outcome.OK

    def _left_out(self, spec: CellSpec, treatment: Treatment, name: str, tags: Mapping[str, str], reason: str) -> bool:
        """A cell that need not be run has its run all the same: what it would have found is known."""
        self._check_stop()
        self.write(self._opened(spec, treatment, name, {**tags, "implied": "true"}))
        self.write(RunClosed(spec.run, now_ms(), Outcome.OUT_OF_MEMORY, reason))
        self._display.finish(f"{name}: {Outcome.OUT_OF_MEMORY} ({reason})")
        return True

    def _remember_what_did_not_fit(self, ended: Mapping[str, Outcome]) -> None:
        for cell in self._plan():
            if ended.get(cell.key) == Outcome.OUT_OF_MEMORY:
                self._frontier.note(self.treatments[cell.treatment])

    def _spec(self, treatment: Treatment, block: int, key: str, inputs: Mapping[str, Any]) -> CellSpec:
        run = uuid.uuid4().hex
        return CellSpec(
            run=run,
            workload=self._module.WORKLOAD,
            stage=treatment.stage,
            framework=treatment.framework,
            device=self.device,
            threads=self._threads,
            block=block,
            settings={k: v for k, v in {**dataclasses.asdict(self.settings), **treatment.settings}.items() if k not in SILENT},
            inputs=dict(inputs),
            journal=str(self._journal.folder.resolve()),
            folder=f"cells/{key}/{run[:8]}",
            checkpoint=str((self._journal.folder / "cells" / key / "checkpoint").resolve()),
            experiment=self.experiment,
            campaign=self.run_id,
        )

    def _measured(self, spec: CellSpec, treatment: Treatment, name: str, tags: Mapping[str, str]) -> Outcome:
        """Opens the run, listens to the child until it ends, closes the run with its outcome."""
        self._check_stop()
        self._full_disk = ""
        self.write(self._opened(spec, treatment, name, tags))
        self.write(self._dataset(spec.run))
        self._display.begin(name)
        began = time.monotonic()
        try:
            closed = self._listen(spec, sensed=treatment.sensed)
        except OSError as error:
            closed = _failed(spec.run, f"the cell could not be started: {error}")
        if spec.stage == "train" and closed.outcome == Outcome.OK:
            _forget_checkpoint(spec)
        self.write(closed)
        good = closed.outcome == Outcome.OK
        self._display.finish(
            f"{name}: {closed.outcome}{f' ({closed.reason})' if closed.reason else ''}, {time.monotonic() - began:.0f} s",
            good=good,
        )
        self._uploader.wake()
        self.deliver(30.0)  # packing a model while the next cell is timed would be seen in its times
        self._tell_trouble()
        self._check_stop()
        return Outcome(closed.outcome)

    def _listen(self, spec: CellSpec, *, sensed: bool) -> RunClosed:
        child = Child(spec, spec.path / "output.log")
        closed: RunClosed | None = None
        windows: list[dict[str, Any]] = []
        latest: dict[str, float] = {}
        phase = ""
        with self._sensing(spec.run, child.pid) if sensed else nullcontext() as sampler:
            while child.open:
                for message in child.listen(LISTEN_SECONDS):
                    if isinstance(message, RunClosed):
                        closed = message
                    elif isinstance(message, dict):
                        windows += [message] if "window" in message else []
                        if "progress" in message:
                            phase = message["progress"]
                            self._display.step(message["progress"], message["done"], message["total"])
                    else:
                        self.write(message)
                        latest |= {p.key: p.value for p in message.points} if isinstance(message, Metrics) else {}
                if self._stop_signal or self._full_disk:
                    child.stop()
        ended = child.ended()
        if sampler:
            self._summarise_sensors(spec.run, sampler, windows)
        self.write(Tags(spec.run, self._note(spec, latest)))
        if closed and closed.outcome == Outcome.OK:
            return closed
        ended = _in_phase(closed or ended, phase)
        if self._full_disk:
            return _failed(spec.run, self._full_disk)
        if self._stop_signal:
            return dataclasses.replace(ended, outcome=Outcome.INTERRUPTED, reason=f"the campaign got {self._stop_signal}")
        self.write(Artifact(spec.run, f"{spec.folder}/output.log"))
        return ended

    # ---- records

    def write(self, record: Record) -> None:
        """To the journal. A full disk is remembered: it ends the cell that is running, not the campaign."""
        try:
            self._journal.append(record)
        except JournalError as error:
            self._full_disk = str(error)

    def _opened(self, spec: CellSpec, treatment: Treatment, name: str, tags: Mapping[str, str]) -> RunOpened:
        own = dataclasses.replace(self.settings, **treatment.settings)
        logged = {k: v for k, v in settings_.as_text(own).items() if k not in SILENT}
        logged |= {"device": self.device, "threads": str(self._threads)}
        common = {
            "campaign": f"run:{self._run}",
            "model": treatment.settings.get("model", self._module.MODEL),
            "dataset": self.prepared.dataset.name,
            "settings_hash": settings_hash(logged),
            **self.prepared.tags,
            **origin_tags(self.study, self.settings),
            **({"warnings": BETWEEN_WARNINGS.join(self.warnings)} if self.warnings else {}),
        }
        return RunOpened(spec.run, now_ms(), self.experiment, name, {**common, **tags}, {**logged, "framework": spec.framework})

    def _dataset(self, run: str) -> DatasetUsed:
        info = self.prepared.dataset
        return DatasetUsed(
            run, info.name, info.digest[:36], info.source, schema(info.columns), json.dumps(dict(info.counts)), "training"
        )

    def _note(self, spec: CellSpec, latest: Mapping[str, float]) -> dict[str, str]:
        """The run's description: what it was, what it found, where it belongs."""
        from experiments.comparison import words

        told = [one for one in self._module.OUTCOMES if one.metric in latest]
        found = [f"- {one.label}: **{words.quantity(latest[one.metric], one)}**" for one in told]
        where = f"on `{spec.device}` with {spec.threads} threads; data `{self.prepared.dataset.name}`"
        text = f"`{spec.framework}`, {spec.stage}, {where}."
        return note("\n\n".join([text, "\n".join(found), *(f"⚠ {line}" for line in self.warnings)]))

    # ---- sensors

    @contextmanager
    def _sensing(self, run: str, pid: int) -> Iterator[Sampler]:
        began = time.time()
        waiting: list[Point] = []

        def keep(sample: sensors.Sample) -> None:
            time_ms, second = int(sample.time_seconds * 1_000), int(sample.time_seconds - began)
            waiting.extend(Point(key, value, second, time_ms) for key, value in sample.values.items())
            if len(waiting) >= SENSORS_A_RECORD * len(sample.values):
                self.write(Metrics(run, tuple(waiting)))
                waiting.clear()

        sampler = Sampler(pid, getattr(self.settings, "sensor_seconds", 0.5), keep)
        sampler.start()
        try:
            yield sampler
        finally:
            sampler.stop()
            if waiting:
                self.write(Metrics(run, tuple(waiting)))

    def _summarise_sensors(self, run: str, sampler: Sampler, windows: list[dict[str, Any]]) -> None:
        for window in windows:
            if window["window"] in ("train", "features"):
                values = sensors.summarise(sampler.samples, window["start"], window["end"], window["examples"])
                self.write(Metrics(run, tuple(Point(key, value, 0, now_ms()) for key, value in values.items())))
        if sampler.missing:
            self.write(Tags(run, {f"not_available.{name}": reason[:200] for name, reason in sampler.missing.items()}))

    # ---- stopping

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def remember(number: int, _: object) -> None:
            self._stop_signal = signal.Signals(number).name

        # What was ignored when we were started (nohup, a shell's background job) stays ignored.
        wanted = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
        before = {number: signal.signal(number, remember) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _check_stop(self) -> None:
        if self._stop_signal:
            raise Interrupted(f"stopped by {self._stop_signal}; finished cells are kept, continue with resume={self.run_id}")

    def _tell_trouble(self) -> None:
        if self._uploader.trouble and not self._trouble_told:
            self._trouble_told = True
            self._display.say(
                f"! the tracking server does not answer; records wait in {self._journal.folder}", style="bold yellow"
            )
        elif not self._uploader.trouble and self._trouble_told:
            self._trouble_told = False
            self._display.say("  the tracking server is back; it has been told everything since")

    def deliver(self, timeout_seconds: float = 120.0) -> bool:
        """Everything measured so far to the server. False if it stays away."""
        deadline = time.monotonic() + timeout_seconds
        while not self._uploader.up_to_date:
            if self._uploader.trouble or not self._uploader.is_alive() or time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def close(self, outcome: Outcome, reason: str = "", tags: Mapping[str, str] | None = None) -> bool:
        """Ends the campaign's run and delivers what can be delivered."""
        if tags:
            self.write(Tags(self._run, dict(tags)))
        self.write(RunClosed(self._run, now_ms(), outcome, reason))
        arrived = self._uploader.finish(120.0 if not self._uploader.trouble else 5.0)
        for line in self._uploader.refused:
            self._display.say(f"! refused by the server: {line}", style="bold yellow")
        self._journal.close()
        return arrived

    def keep_file(self, path: Path, folder: str = "") -> None:
        """A file or folder below the journal's as an artifact of the campaign's run."""
        self.write(Artifact(self._run, str(path.relative_to(self._journal.folder)), folder))

    def keep_metrics(self, values: Mapping[str, float]) -> None:
        """Metrics of the campaign's own run."""
        if values:
            self.write(Metrics(self._run, tuple(Point(key, value, 0, now_ms()) for key, value in values.items())))

    @property
    def folder(self) -> Path:
        return self._journal.folder


def origin_tags(study: str, settings: CampaignSettings) -> dict[str, str]:
    """Who ran what where: the same on a campaign's run and on its cells'."""
    commit = provenance.commit()
    optional = {"commit": commit, "team": settings.team}
    return {
        "machine": provenance.fingerprint(),
        "environment": provenance.environment_digest(),
        **provenance.surroundings(),
        **{name: text for name, text in optional.items() if text},
        **source(study, commit),
    }


def resolve_device(device: str) -> str:
    """`auto` is the GPU if the driver shows one; cuda without one is refused."""
    present = bool(provenance.gpus())
    if device == "cuda" and not present:
        raise WrongCall("device=cuda: no NVIDIA GPU answers on this machine; use device=cpu or device=auto")
    return ("cuda" if present else "cpu") if device == "auto" else device


def ended_cells(folder: Path) -> dict[str, Outcome]:
    """Key of every cell that has a closed run in the journal -> its outcome; ok, where one of several is."""
    keys: dict[str, str] = {}
    found: dict[str, Outcome] = {}
    for record in journal.read_all(folder):
        if isinstance(record, RunOpened):
            keys[record.run] = record.tags.get("cell", "")
        elif isinstance(record, RunClosed) and (key := keys.get(record.run)) and found.get(key) != Outcome.OK:
            found[key] = Outcome(record.outcome)
    return found


def settings_hash(logged: Mapping[str, str]) -> str:
    """Equal where all settings but the compared ones are: whatever does not change a measurement is left out."""
    kept = sorted((k, v) for k, v in logged.items() if k not in IMMATERIAL and k != "inject_delay")
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:12]


def _forget_checkpoint(spec: CellSpec) -> None:
    shutil.rmtree(spec.checkpoint, ignore_errors=True)


def _in_phase(closed: RunClosed, phase: str) -> RunClosed:
    """What ran out of memory says in which phase."""
    if closed.outcome != Outcome.OUT_OF_MEMORY or not phase:
        return closed
    return dataclasses.replace(closed, reason=f"{phase}: {closed.reason}")


def _failed(run: str, reason: str) -> RunClosed:
    return RunClosed(run, now_ms(), Outcome.FAILED, reason)


def now_ms() -> int:
    return int(time.time() * 1_000)
