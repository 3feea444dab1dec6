"""One cell after the other, each in a fresh process; every record to the journal, then to MLflow: for campaigns and sweeps."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import math
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments import studies
from experiments.campaign import readiness
from experiments.campaign.neighbours import Neighbours
from experiments.campaign.process import Child
from experiments.campaign.sensing import Sensing
from experiments.cell.contract import CellSpec, Prepared
from experiments.config import devices, shell
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import STOP, Interrupted
from experiments.planning.treatments import Treatment
from models import frameworks
from tracking import journal, provenance
from tracking.cpus import quota
from tracking.journal import Journal, JournalError
from tracking.records import (
    BETWEEN_WARNINGS,
    Artifact,
    DatasetUsed,
    Metrics,
    Point,
    Record,
    RunClosed,
    RunOpened,
    RunOutcome,
    Tags,
)
from tracking.sensors import Sensors, Window
from tracking.store import Store, note, schema, source
from tracking.upload import Uploader

LISTEN_SECONDS = 0.2


@dataclass(frozen=True)
class Setup:
    """What cells have in common: the study, its settings, what the parent found out about their data."""

    study: str
    settings: CampaignSettings
    prepared: Prepared

    @property
    def module(self) -> ModuleType:
        return importlib.import_module(f"experiments.studies.{self.study}")

    @property
    def threads(self) -> int:
        return threads_of_cells(self.settings)


@dataclass(frozen=True)
class Work:
    """One process to be run. key: its folder among the journal's cells; name, tags: of its run, which the journal calls `run`.

    inputs: what this one is told.
    """

    treatment: Treatment
    key: str
    name: str
    tags: Mapping[str, str]
    inputs: Mapping[str, Any]
    block: int = 0
    run: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class Ended:
    """How a cell ended. phase: where it ran out of memory, or empty. metrics: their latest values.

    disturbed: what others used of the machine, where it was more than the settings allow. repeat: whether it repeats such a cell.
    """

    outcome: RunOutcome
    phase: str = ""
    reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    disturbed: str = ""
    repeat: bool = False


# What is told of a running cell's metrics; an answer that is not empty ends the cell, and is why.
Watch = Callable[[Metrics], str]


class Runner:
    """The run that cells belong to, with its journal. `measure` runs a cell; `close` ends the run, whatever happened."""

    def __init__(self, records: Journal, display: Display, device: str) -> None:
        kept = journal.read_campaign(records.folder)
        self.run: str = kept["run"]
        self.run_id: str = kept["run_id"]
        self.experiment: str = kept["experiment"]
        self.resume_command = _resume_command(kept, records.folder.parent)
        self.idle = readiness.from_values(kept.get("idle", {}))
        self.warnings: list[str] = []
        self.display = display
        self.store = Store()
        self.store.expect([], self.experiment, {self.run: self.run_id})
        self._journal = records
        self._uploader = Uploader(records, self.store, self.run_id)
        self._uploader.start()
        self._sensors = Sensors(device=device)
        self._full_disk = ""
        self._trouble_told = False
        self._damage_told: list[str] = []
        if self._uploader.doubt:
            self.display.say(f"! {self._uploader.doubt}", style="bold yellow")

    # ---- one process

    def measure(self, setup: Setup, work: Work, watch: Watch | None = None) -> Ended:
        """Opens the run, listens to the child until it ends, closes the run with its outcome."""
        self.check_stop()
        self._full_disk = ""
        spec = self._spec(setup, work)
        self.write(self._opened(setup, spec, work))
        self.write(_dataset(spec.run, setup.prepared))
        self._uploader.wake()
        self.display.begin(work.name)
        began, phase, latest, neighbours = time.monotonic(), "", dict[str, float](), Neighbours()
        try:
            closed, timed = self._listen(setup, spec, latest, neighbours, watch, sensed=work.treatment.sensed)
            if closed.outcome == RunOutcome.OUT_OF_MEMORY:
                phase = next((one for one in work.treatment.settings.get("phases", ()) if one not in timed), "")
                self.write(Tags(spec.run, {"phase": phase}))
        except OSError as error:
            closed = _failed(spec.run, f"the cell could not be started: {error}")
        disturbed = neighbours.log(spec.run, setup.settings.others_limit_percent, self.write)
        latest |= neighbours.metrics
        if spec.stage == "train" and closed.outcome in (RunOutcome.OK, RunOutcome.PRUNED):
            shutil.rmtree(spec.checkpoint, ignore_errors=True)
        self.write(closed)
        told = "; ".join(filter(None, (closed.reason, disturbed)))
        why = f" ({told})" if told else ""
        self.display.finish(
            f"{work.name}: {closed.outcome}{why}, {time.monotonic() - began:.0f} s",
            good=closed.outcome in (RunOutcome.OK, RunOutcome.PRUNED),
        )
        self._uploader.wake()
        self.deliver(30.0)  # packing a model while the next cell is timed would be seen in its times
        self._tell_trouble()
        self.check_stop()
        return Ended(RunOutcome(closed.outcome), phase, closed.reason, latest, disturbed, "repeats" in work.tags)

    def leave_out(self, setup: Setup, work: Work, reason: str) -> None:
        """A cell that need not be run has its run all the same: what it would have found is known."""
        self.check_stop()
        spec = self._spec(setup, work)
        self.write(self._opened(setup, spec, dataclasses.replace(work, tags={**work.tags, "implied": "true"})))
        self.write(RunClosed(spec.run, now_ms(), RunOutcome.OUT_OF_MEMORY, reason))
        self.display.finish(f"{work.name}: {RunOutcome.OUT_OF_MEMORY} ({reason})")

    def cool_down(self, name: str, limit_seconds: float) -> str:
        """Waits for the temperature of the start where a sensor tells one; how that went, empty if it was there."""
        if not (limit_seconds and self.idle.celsius):
            return ""

        def go_on(warm: str, waited: float) -> bool:
            self.display.step(f"cool-down before {name}: {warm}", int(waited), int(limit_seconds))
            return not STOP.number

        self.display.begin("cool-down")
        return readiness.cool_down(self.idle.celsius, self._sensors, limit_seconds, go_on)

    def _spec(self, setup: Setup, work: Work) -> CellSpec:
        settings, treatment = setup.settings, work.treatment
        own, silent = {**dataclasses.asdict(settings), **treatment.settings}, settings_.silent(settings)
        return CellSpec(
            run=work.run,
            workload=setup.module.WORKLOAD,
            stage=treatment.stage,
            framework=treatment.framework,
            device=device_of(settings, treatment),
            threads=setup.threads,
            block=work.block,
            settings={k: v for k, v in own.items() if k not in silent},
            inputs=dict(work.inputs),
            journal=str(self._journal.folder.resolve()),
            folder=f"cells/{work.key}/{work.run[:8]}",
            checkpoint=str((self._journal.folder / "cells" / work.key / "checkpoint").resolve()),
            experiment=self.experiment,
            campaign=self.run_id,
            cpus=devices.placement(settings).cells if devices.is_placed(settings) else (),
        )

    def _listen(
        self,
        setup: Setup,
        spec: CellSpec,
        latest: dict[str, float],
        neighbours: Neighbours,
        watch: Watch | None,
        *,
        sensed: bool,
    ) -> tuple[RunClosed, set[str]]:
        """How the child ended, and the phases that it had timed by then. latest: gets the latest value of every metric."""
        child = Child(spec, spec.path / "output.log")
        closed: RunClosed | None = None
        windows: list[Window] = []
        timed: set[str] = set()
        phase = pruned = ""
        sensing = Sensing(spec.run, child.pid, spec.device, setup.settings.sensor_seconds, self.write) if sensed else None
        with sensing or nullcontext(), self._sparing():
            while child.open:
                for message in child.listen(LISTEN_SECONDS):
                    if isinstance(message, RunClosed):
                        closed = message
                    elif isinstance(message, dict):
                        if "begin" in message:
                            neighbours.begin()
                        if "window" in message:
                            neighbours.end()
                            windows.append(Window(**message["window"]))
                            timed.add(message["phase"])
                        if "progress" in message:
                            phase = message["progress"]
                            self.display.step(message["progress"], message["done"], message["total"])
                    else:
                        self.write(message)
                        if isinstance(message, Metrics):
                            latest |= {point.key: point.value for point in message.points}
                            pruned = pruned or (watch(message) if watch else "")
                if STOP.number or self._full_disk or pruned:
                    child.stop()
        ended = child.ended()
        if sensing:
            latest |= sensing.log_windows(windows)
        self.write(Tags(spec.run, self._note(setup, spec, latest)))
        if closed and closed.outcome == RunOutcome.OK:
            return closed, timed
        ended = _in_phase(closed or ended, phase)
        if self._full_disk:
            return _failed(spec.run, self._full_disk), timed
        if STOP.number:
            reason = f"the campaign got {STOP.name}"
            return dataclasses.replace(ended, outcome=RunOutcome.INTERRUPTED, reason=reason), timed
        if pruned:
            return dataclasses.replace(ended, outcome=RunOutcome.PRUNED, reason=pruned), timed
        self.write(Artifact(spec.run, f"{spec.folder}/output.log"))
        return ended, timed

    @contextmanager
    def _sparing(self) -> Iterator[None]:
        self._uploader.sparing = True
        try:
            yield
        finally:
            self._uploader.sparing = False

    # ---- records

    def write(self, record: Record) -> None:
        """To the journal. A full disk is remembered: it ends the cell that is running, not the campaign."""
        try:
            self._journal.append(record)
        except JournalError as error:
            self._full_disk = str(error)

    def warn(self, warnings: tuple[str, ...]) -> None:
        """Says them, and keeps them on this run and on those of the cells to come."""
        self.warnings += [warning for warning in warnings if warning not in self.warnings]
        for warning in warnings:
            self.display.say(f"! {warning}", style="bold yellow")
        if warnings:
            self.write(Tags(self.run, {"warnings": BETWEEN_WARNINGS.join(self.warnings)}))

    def _opened(self, setup: Setup, spec: CellSpec, work: Work) -> RunOpened:
        own = dataclasses.replace(setup.settings, **work.treatment.settings)
        logged = logged_settings(setup.settings, work.treatment)
        common = {
            "campaign": f"run:{self.run}",
            "model": getattr(own, "model", "") or setup.module.MODEL,
            "dataset": setup.prepared.dataset.name,
            "settings_hash": settings_hash(logged, settings_.immaterial(own)),
            **origin_tags(setup.study, setup.settings),
            **setup.prepared.tags,
            **({} if setup.settings.pin == "none" else devices.placement(setup.settings).tags),
            **({"warnings": BETWEEN_WARNINGS.join(self.warnings)} if self.warnings else {}),
        }
        params = {**logged, "framework": spec.framework}
        return RunOpened(spec.run, now_ms(), self.experiment, work.name, {**common, **work.tags}, params)

    def _note(self, setup: Setup, spec: CellSpec, latest: Mapping[str, float]) -> dict[str, str]:
        """The run's description: what it was, what it found, where it belongs."""
        from experiments.comparison.report import wording

        told = [one for one in studies.outcomes(setup.module, setup.settings) if one.metric in latest]
        found = [f"- {one.label}: **{wording.quantity(latest[one.metric], one)}**" for one in told]
        where = f"on `{spec.device}` with {spec.threads} thread{'s' * (spec.threads != 1)}; data `{setup.prepared.dataset.name}`"
        text = f"`{spec.framework}`, {spec.stage}, {where}."
        return note("\n\n".join([text, "\n".join(found), *(f"⚠ {line}" for line in self.warnings)]))

    # ---- stopping

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Within it a signal ends the running cell and what follows it, in order."""
        STOP.hold()
        try:
            yield
            self.check_stop()
        finally:
            STOP.release()

    def check_stop(self) -> None:
        """Raises Interrupted if a signal came."""
        if STOP.number:
            raise self.interrupted("; finished cells are kept")

    def interrupted(self, where: str) -> Interrupted:
        """The error for a stopped campaign, with the command that continues it."""
        return Interrupted(f"stopped by {STOP.name}{where}", self.resume_command)

    def _tell_damage(self) -> None:
        found = [str(line) for line in tuple(self._uploader.damaged.values())]
        for line in journal.named([line for line in found if line not in self._damage_told]):
            self.display.say(f"! {line}", style="bold yellow")
        self._damage_told = found

    def _tell_trouble(self) -> None:
        self._tell_damage()
        if self._uploader.trouble and not self._trouble_told:
            self._trouble_told = True
            self.display.say(
                f"! the tracking server takes no records now ({self._uploader.trouble}); they wait in {self._journal.folder}",
                style="bold yellow",
            )
        elif not self._uploader.trouble and self._trouble_told:
            self._trouble_told = False
            self.display.say("  the tracking server is back; it has been told everything since")

    def deliver(self, timeout_seconds: float = 120.0) -> bool:
        """Everything measured so far to the server. False if it stays away."""
        deadline = time.monotonic() + timeout_seconds
        while not self._uploader.up_to_date:
            if self._uploader.stuck or time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def leave(self) -> bool:
        """Delivers what can be delivered and lets the journal go; the run stays as it is. Says what is not delivered."""
        arrived = self._uploader.finish(120.0 if not self._uploader.trouble else 5.0)
        self._tell_damage()
        again = shell.command("replay", "--journal", str(self.folder))
        told = journal.named([f"refused: {line}" for line in self._uploader.refused])
        if not arrived:
            reason = self._uploader.trouble or "it takes longer than this process waits"
            told.append(
                f"{self._uploader.undelivered:,} records wait: {self.store.uri}: {reason}; send them when it can: {again}"
            )
        elif told:
            told.append(f"what was refused stays in the journal; send it again: {again}")
        for line in told:
            self.display.say(f"! {line}", style="bold yellow")
        self._journal.close()
        return arrived

    def close(self, outcome: RunOutcome, reason: str = "", tags: Mapping[str, str] | None = None) -> bool:
        """Ends the run and delivers what can be delivered."""
        if tags:
            self.write(Tags(self.run, dict(tags)))
        self.write(RunClosed(self.run, now_ms(), outcome, reason))
        return self.leave()

    def keep_file(self, path: Path, folder: str = "") -> None:
        """A file or folder below the journal's as an artifact of the run."""
        self.write(Artifact(self.run, str(path.relative_to(self._journal.folder)), folder))

    def keep_metrics(self, values: Mapping[str, float]) -> None:
        """Records metrics of the campaign's own run."""
        if values:
            self.write(Metrics(self.run, tuple(Point(key, value, 0, now_ms()) for key, value in values.items())))

    @property
    def folder(self) -> Path:
        return self._journal.folder


def origin_tags(study: str, settings: CampaignSettings) -> dict[str, str]:
    """Who ran what where: the same on a campaign's run and on its cells'."""
    commit = provenance.commit()
    optional = {"commit": commit, "team": settings.team}
    return {
        "machine": provenance.fingerprint(),
        "environment": provenance.environment_digest(frameworks.distributions()),
        **provenance.environment_tags(frameworks.distributions()),
        **{name: text for name, text in optional.items() if text},
        **source(study, commit),
    }


def threads_of_cells(settings: CampaignSettings) -> int:
    """The CPU threads of every framework alike: as many as were asked for, or one for each CPU that cells may use."""
    limit, free = quota(), len(devices.placement(settings).cells)
    return settings.threads or max(1, free if limit is None else min(free, math.floor(limit)))


def device_of(settings: CampaignSettings, treatment: Treatment) -> str:
    """The device that a treatment's cells compute on."""
    return devices.resolve(treatment.settings.get("device", settings.device))


def logged_settings(settings: CampaignSettings, treatment: Treatment) -> dict[str, str]:
    """What the runs of a treatment's cells log of their settings, as text."""
    own = dataclasses.replace(settings, **treatment.settings)
    silent = settings_.silent(own)
    told = {name: text for name, text in settings_.as_text(own).items() if name not in silent}
    return {**told, "device": device_of(settings, treatment), "threads": str(threads_of_cells(settings))}


def settings_hash(logged: Mapping[str, str], immaterial: Collection[str]) -> str:
    """Equal where all settings but the compared ones are: whatever does not change a measurement is left out."""
    kept = sorted((k, v) for k, v in logged.items() if k not in immaterial and k != "inject_delay")
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:12]


def _dataset(run: str, prepared: Prepared) -> DatasetUsed:
    info = prepared.dataset
    return DatasetUsed(
        run, info.name, info.digest[:36], info.source, schema(info.columns), json.dumps(dict(info.counts)), "training"
    )


def _resume_command(kept: Mapping[str, Any], root: Path) -> str:
    """What continues the work that a description tells of, as a shell takes it. root: the folder of its journal's folder."""
    storage = kept["sweep"]["storage"] if "joined" in kept else ""
    shared = [f"--storage={storage}"] if storage and not shell.has_password(storage) else []
    return shell.from_anywhere(kept["study"], f"--resume={kept['run_id']}", *journal_option(root), *shared)


def journal_option(root: Path) -> list[str]:
    """The option that names the folder of the journals, where it is not the default."""
    return [] if root.resolve() == Path(CampaignSettings.journal).resolve() else [f"--journal={root.resolve()}"]


def _in_phase(closed: RunClosed, phase: str) -> RunClosed:
    """The reason for running out of memory, with the phase it happened in."""
    if closed.outcome != RunOutcome.OUT_OF_MEMORY or not phase:
        return closed
    return dataclasses.replace(closed, reason=f"{phase}: {closed.reason}")


def _failed(run: str, reason: str) -> RunClosed:
    return RunClosed(run, now_ms(), RunOutcome.FAILED, reason)


def now_ms() -> int:
    return int(time.time() * 1_000)
