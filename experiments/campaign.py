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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from experiments import design, readiness, treatments
from experiments import settings as settings_
from experiments.comparison.gates import IMMATERIAL
from experiments.console import Display
from experiments.design import Cell
from experiments.frontier import Frontier
from experiments.process import Child
from experiments.sensing import Sensing
from experiments.settings import CampaignSettings
from experiments.treatments import Treatment
from experiments.workloads.contract import CellSpec, Job, Prepared
from tracking import journal, provenance
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
from tracking.sensors import Sensors, Window
from tracking.store import Store, note, schema, source
from tracking.upload import Uploader

LISTEN_SECONDS = 0.2
SILENT = frozenset({"journal", "cache", "resume"})


class Interrupted(EvenhandError):
    """The user or the system asked the campaign to stop."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a cell ended. phase: where it ran out of memory, or empty."""

    outcome: Outcome
    phase: str = ""


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
        self.devices = devices(settings)
        self._threads = settings.threads or os.cpu_count() or 1
        self.store = Store()
        self._uploader = Uploader(records, self.store, run_id)
        self._uploader.start()
        self._frontier = Frontier(getattr(self._module, "FRONTIER", ""))
        self._idle = readiness.from_values(kept.get("idle", {}))
        self._sensors = Sensors(device=self.devices[0])
        self._stop_signal = ""
        self._full_disk = ""
        self._trouble_told = False

    # ---- the whole

    def run(self) -> bool:
        """What comes before the blocks, then every cell that is not there yet. True if all ended well."""
        with self._signals():
            ended = ended_cells(self._journal.folder)
            counted = {Outcome.OK, Outcome.OUT_OF_MEMORY} if self._frontier.along else {Outcome.OK}
            self._done = {key for key, end in ended.items() if end.outcome in counted}
            cells = self._plan()
            self._remember_what_did_not_fit(cells, ended)
            self._warn(self.prepared.warnings)
            self._display.expect(len(self.prepared.before) + len({cell.key for cell in cells} - self._done))
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
        return self._measured(spec, treatment, name, tags).outcome == Outcome.OK

    def _cell(self, cell: Cell) -> bool:
        """A cell that is not there yet; and, where it does not fit as a whole, those of its phases that do."""
        whole = self.treatments[cell.treatment]
        well = cell.key in self._done or self._try(cell, whole)
        if alone := self._frontier.alone(whole):
            part = dataclasses.replace(cell, treatment=alone.name)
            if part.key not in self._done:
                self._display.expect_another()
                well = self._try(part, alone) and well
        return well

    def _try(self, cell: Cell, treatment: Treatment) -> bool:
        tags = {
            "kind": Kind.CELL,
            "framework": treatment.framework,
            "treatment": treatment.name,
            "block": str(cell.block),
            "order_in_block": str(cell.order_in_block),
            "idle": str(self._idle),
            **({"control": treatment.control} if treatment.control else {}),
        }
        spec = self._spec(treatment, cell.block, cell.key, self.prepared.inputs)
        name, tags = f"{treatment.name} · block {cell.block}", {**tags, "cell": cell.key}
        reason, phase = self._frontier.implied(treatment)
        if reason:
            return self._left_out(spec, treatment, name, {**tags, "phase": phase}, reason)
        if cooled := self._cool_down(name):
            tags["cool_down"] = cooled
        ended = self._measured(spec, treatment, name, tags)
        if ended.outcome == Outcome.OUT_OF_MEMORY:
            self._frontier.note(treatment, ended.phase)
            return bool(self._frontier.along)
        return ended.outcome == Outcome.OK

    def _left_out(self, spec: CellSpec, treatment: Treatment, name: str, tags: Mapping[str, str], reason: str) -> bool:
        """A cell that need not be run has its run all the same: what it would have found is known."""
        self._check_stop()
        self.write(self._opened(spec, treatment, name, {**tags, "implied": "true"}))
        self.write(RunClosed(spec.run, now_ms(), Outcome.OUT_OF_MEMORY, reason))
        self._display.finish(f"{name}: {Outcome.OUT_OF_MEMORY} ({reason})")
        return True

    def _remember_what_did_not_fit(self, cells: Iterable[Cell], ended: Mapping[str, Ended]) -> None:
        for cell in cells:
            treatment: Treatment | None = self.treatments[cell.treatment]
            while treatment:
                end = ended.get(dataclasses.replace(cell, treatment=treatment.name).key)
                if end and end.outcome == Outcome.OUT_OF_MEMORY:
                    self._frontier.note(treatment, end.phase)
                treatment = self._frontier.alone(treatment)

    def _cool_down(self, name: str) -> str:
        """Waits for the campaign's starting temperature where a sensor tells one; how that went, empty if it was there."""
        if not (self.settings.cool_down_seconds and self._idle.celsius):
            return ""

        def go_on(warm: str, waited: float) -> bool:
            self._display.step(f"cool-down before {name}: {warm}", int(waited), int(self.settings.cool_down_seconds))
            return not self._stop_signal

        self._display.begin("cool-down")
        return readiness.cool_down(self._idle.celsius, self._sensors, self.settings.cool_down_seconds, go_on)

    def _spec(self, treatment: Treatment, block: int, key: str, inputs: Mapping[str, Any]) -> CellSpec:
        run = uuid.uuid4().hex
        return CellSpec(
            run=run,
            workload=self._module.WORKLOAD,
            stage=treatment.stage,
            framework=treatment.framework,
            device=resolve_device(treatment.settings.get("device", self.settings.device)),
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

    def _measured(self, spec: CellSpec, treatment: Treatment, name: str, tags: Mapping[str, str]) -> Ended:
        """Opens the run, listens to the child until it ends, closes the run with its outcome."""
        self._check_stop()
        self._full_disk = ""
        self.write(self._opened(spec, treatment, name, tags))
        self.write(self._dataset(spec.run))
        self._display.begin(name)
        began, phase = time.monotonic(), ""
        try:
            closed, timed = self._listen(spec, sensed=treatment.sensed)
            if closed.outcome == Outcome.OUT_OF_MEMORY:
                phase = next((one for one in treatment.settings.get("phases", ()) if one not in timed), "")
                self.write(Tags(spec.run, {"phase": phase}))
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
        return Ended(Outcome(closed.outcome), phase)

    def _listen(self, spec: CellSpec, *, sensed: bool) -> tuple[RunClosed, set[str]]:
        """How the child ended, and the phases that it had timed by then."""
        child = Child(spec, spec.path / "output.log")
        closed: RunClosed | None = None
        windows: list[Window] = []
        timed: set[str] = set()
        latest: dict[str, float] = {}
        phase = ""
        sensing = Sensing(spec.run, child.pid, spec.device, self.settings.sensor_seconds, self.write) if sensed else None
        with sensing or nullcontext():
            while child.open:
                for message in child.listen(LISTEN_SECONDS):
                    if isinstance(message, RunClosed):
                        closed = message
                    elif isinstance(message, dict):
                        if "window" in message:
                            windows.append(Window(**message["window"]))
                            timed.add(message["phase"])
                        if "progress" in message:
                            phase = message["progress"]
                            self._display.step(message["progress"], message["done"], message["total"])
                    else:
                        self.write(message)
                        latest |= {p.key: p.value for p in message.points} if isinstance(message, Metrics) else {}
                if self._stop_signal or self._full_disk:
                    child.stop()
        ended = child.ended()
        if sensing:
            sensing.tell(windows)
        self.write(Tags(spec.run, self._note(spec, latest)))
        if closed and closed.outcome == Outcome.OK:
            return closed, timed
        ended = _in_phase(closed or ended, phase)
        if self._full_disk:
            return _failed(spec.run, self._full_disk), timed
        if self._stop_signal:
            reason = f"the campaign got {self._stop_signal}"
            return dataclasses.replace(ended, outcome=Outcome.INTERRUPTED, reason=reason), timed
        self.write(Artifact(spec.run, f"{spec.folder}/output.log"))
        return ended, timed

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
        logged |= {"device": spec.device, "threads": str(self._threads)}
        common = {
            "campaign": f"run:{self._run}",
            "model": getattr(own, "model", "") or self._module.MODEL,
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


def devices(settings: CampaignSettings) -> tuple[str, ...]:
    """What the cells compute on: the study's `devices`, where it names several, or `device`."""
    wanted: tuple[str, ...] = getattr(settings, "devices", ()) or (settings.device,)
    return tuple(dict.fromkeys(map(resolve_device, wanted)))


def resolve_device(device: str) -> str:
    """`auto` is the GPU if the driver shows one; cuda without one is refused."""
    present = bool(provenance.gpus())
    if device == "cuda" and not present:
        raise WrongCall("device=cuda: no NVIDIA GPU answers on this machine; use device=cpu or device=auto")
    return ("cuda" if present else "cpu") if device == "auto" else device


def ended_cells(folder: Path) -> dict[str, Ended]:
    """Key of every cell that has a closed run in the journal -> how it ended; well, where one of several did."""
    keys: dict[str, str] = {}
    phases: dict[str, str] = {}
    ends: list[tuple[str, Ended]] = []
    for record in journal.read_all(folder):
        if isinstance(record, RunOpened):
            keys[record.run] = record.tags.get("cell", "")
        elif isinstance(record, Tags):
            phases[record.run] = record.values.get("phase", phases.get(record.run, ""))
        elif isinstance(record, RunClosed):
            ends.append((keys.get(record.run, ""), Ended(Outcome(record.outcome), phases.get(record.run, ""))))
    ok = [(key, end) for key, end in ends if end.outcome == Outcome.OK]
    return {key: end for key, end in (*ends, *ok) if key}


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
