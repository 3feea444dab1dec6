"""Cells, one by one or in turns, in fresh processes; every record to the journal, then to MLflow: for campaigns and sweeps."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments import studies
from experiments.campaign import readiness
from experiments.campaign.listening import LISTEN_SECONDS, Listening, Watch
from experiments.campaign.turns import FILE, Turn, Turns, as_csv, together
from experiments.config import devices, durations, interpreters, shell, variation
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import STOP, Interrupted
from experiments.contract import CellSpec, Node, Prepared, Study, Treatment
from models import frameworks
from models import own as own_models
from tracking import clock, journal, provenance
from tracking.cpus import quota
from tracking.journal import Journal, JournalError
from tracking.records import (
    BETWEEN_WARNINGS,
    Artifact,
    DatasetUsed,
    Metrics,
    Point,
    Record,
    RepeatCause,
    RunClosed,
    RunKind,
    RunOpened,
    RunOutcome,
    Tags,
)
from tracking.sensors import Sensors
from tracking.store import Store, note, schema, source
from tracking.upload import Collected, Uploader

# Settings that the name of a run tells.
NAMED = 3


@dataclass(frozen=True)
class Setup:
    """What cells have in common: the study, its settings, what the parent found out about their data."""

    study: str
    settings: CampaignSettings
    prepared: Prepared

    @property
    def module(self) -> Study:
        return studies.load(self.study)

    def prepared_for(self, treatment: Treatment) -> Prepared:
        """Return the data of a treatment's cells, which settings of its own may change."""
        return self.prepared.of_treatment.get(treatment.name, self.prepared)


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

    disturbed: why it is to be run once more, though it ended well; empty where it is not. cause: code of that reason. repeat:
    whether it is such a repetition.
    machine: the fingerprint of the one it ran on, where that was read back.
    """

    outcome: RunOutcome
    phase: str = ""
    reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    disturbed: str = ""
    repeat: bool = False
    machine: str = ""
    cause: RepeatCause = RepeatCause.BUSY_MACHINE


class Runner:
    """The run that cells belong to, with its journal. `measure` runs a cell; `close` ends the run, whatever happened.

    part_of: the campaign's folder, where these records are a part of it alone, which another process collects and delivers.
    placed: tags of where such a part runs. called: who is meant where a signal ends a cell.
    nodes: that cells may use, see `CellSpec`.
    """

    def __init__(self, records: Journal, display: Display, device: str, part_of: Path | None = None) -> None:
        self.folder = part_of or records.folder
        kept = journal.read_campaign(self.folder)
        self.run: str = kept["run"]
        self.run_id: str = kept["run_id"]
        self.experiment: str = kept["experiment"]
        self.resume_command = _resume_command(kept, self.folder.parent)
        self.placed: Mapping[str, str] = {}
        self.called = "the campaign"
        self.nodes: tuple[Node, ...] = ()
        self.idle = readiness.from_values(kept.get("idle", {}))
        self.warnings: list[str] = []
        self.display = display
        self.store = Store()
        self.store.expect([], self.experiment, {self.run: self.run_id})
        self._journal = records
        self._uploader = Collected() if part_of else Uploader(records, self.store, self.run_id)
        self._uploader.start()
        self._sensors = Sensors(device=device)
        self._full_disk = ""
        self._trouble_told = False
        self._damage_told: list[str] = []
        if self._uploader.doubt:
            self.display.say(f"! {self._uploader.doubt}", style="bold yellow")

    # ---- one process, or several in turns

    def measure(self, setup: Setup, work: Work, watch: Watch | None = None) -> Ended:
        """Opens the run, listens to the child until it ends, closes the run with its outcome."""
        self._make_ready(work.name)
        cell, began = self._open(setup, work, watch=watch), time.monotonic()
        try:
            with cell, self._sparing([work.treatment.merged(setup.settings)]):
                cell.start(sensor_seconds(setup.settings, work.treatment))
                while cell.open:
                    cell.hear(LISTEN_SECONDS)
                    if self._stopped() or cell.pruned:
                        cell.stop()
            closed = self._ending(setup, work, cell)
        except OSError as error:
            closed = _failed(work.run, f"the cell could not be started: {error}")
        ended = self._close(setup, work, cell, closed, time.monotonic() - began)
        self._settle()
        return ended

    def measure_in_turns(self, setup: Setup, works: Sequence[Work], rng: np.random.Generator) -> list[Ended]:
        """Cells that are alive together, while one works at a time: all of them end well, or none does."""
        names = [work.treatment.name for work in works]
        self._make_ready(f"block {works[0].block}: {', '.join(names)}")
        cells, began = [self._open(setup, work, in_turns=True) for work in works], time.monotonic()
        merged = [work.treatment.merged(setup.settings) for work in works]
        sensors = {work.run: sensor_seconds(setup.settings, work.treatment) for work in works}
        turns = Turns(cells, rng, setup.settings.turn_steps, self._stopped)
        trouble = ""
        with ExitStack() as alive, self._sparing(merged):
            try:
                for cell in cells:
                    alive.enter_context(cell)
                turns.play(lambda cell: cell.start(sensors[cell.spec.run]))
            except OSError as error:
                trouble = f": {error}"
            for cell in cells:
                cell.stop()
        endings = [self._ending(setup, *pair, trouble) for pair in zip(works, cells, strict=True)]
        closings = together(endings, names, cells.index(turns.failed) if turns.failed else None)
        for cell, taken in zip(cells, turns.taken, strict=True):
            if taken:
                self._keep_turns(cell.spec, taken)
        seconds = time.monotonic() - began
        ended = [self._close(setup, *one, seconds) for one in zip(works, cells, closings, strict=True)]
        self._settle()
        return ended

    def _make_ready(self, title: str) -> None:
        self.check_stop()
        self._check_clock()
        self._full_disk = ""
        self.display.begin(title)

    def _open(self, setup: Setup, work: Work, *, watch: Watch | None = None, in_turns: bool = False) -> Listening:
        """Opens the run of a cell whose process has still to be started."""
        spec = dataclasses.replace(self._spec(setup, work), in_turns=in_turns)
        self.write(self._opened(setup, spec, work))
        self.write(_dataset(spec.run, setup.prepared_for(work.treatment)))
        self._uploader.wake()
        before = f"{work.treatment.name}: " if in_turns else ""

        def show(phase: str, done: int, total: int | None) -> None:
            self.display.step(f"{before}{phase}", done, total)

        return Listening(spec, self.write, show, watch)

    def _stopped(self) -> str:
        """Why what runs must end now; empty where nothing speaks against going on."""
        return f"{self.called} got {STOP.name}" if STOP.number else self._full_disk

    def _ending(self, setup: Setup, work: Work, cell: Listening, trouble: str = "") -> RunClosed:
        """How a cell ended, and why. trouble: what is known of a process that could not be started."""
        spec, closed = cell.spec, cell.ended()
        if not closed:
            return _failed(spec.run, f"the cell was not started{trouble}")
        self.write(Tags(spec.run, self._note(setup, spec, work, cell.latest)))
        if closed.outcome == RunOutcome.OK:
            return closed
        closed = _in_phase(closed, cell.phase)
        if self._full_disk:
            return _failed(spec.run, self._full_disk)
        if STOP.number:
            return dataclasses.replace(closed, outcome=RunOutcome.INTERRUPTED, reason=self._stopped())
        if cell.pruned:
            return dataclasses.replace(closed, outcome=RunOutcome.PRUNED, reason=cell.pruned)
        self.write(Artifact(spec.run, f"{spec.folder}/output.log"))
        return closed

    def _keep_turns(self, spec: CellSpec, taken: Sequence[Turn]) -> None:
        try:
            (spec.path / FILE).write_text(as_csv(taken), encoding="utf-8")
        except OSError as error:  # a full disk ends the cell by what else cannot be written
            self._full_disk = self._full_disk or str(error)
        else:
            self.write(Artifact(spec.run, f"{spec.folder}/{FILE}"))

    def _close(self, setup: Setup, work: Work, cell: Listening, closed: RunClosed, seconds: float) -> Ended:
        """Writes what others made of the machine, and the run's end; says so."""
        spec, phase = cell.spec, ""
        if closed.outcome == RunOutcome.OUT_OF_MEMORY:
            phase = next((one for one in work.treatment.settings.get("phases", ()) if one not in cell.timed), "")
            self.write(Tags(spec.run, {"phase": phase}))
        limit_percent = work.treatment.merged(setup.settings).others_limit_percent
        disturbed = cell.neighbours.log(spec.run, limit_percent, self.write)
        latest = cell.latest | cell.neighbours.metrics
        if spec.stage == "train" and closed.outcome in (RunOutcome.OK, RunOutcome.PRUNED):
            shutil.rmtree(spec.checkpoint, ignore_errors=True)
        if self._check_clock():
            self.write(Tags(spec.run, {"warnings": BETWEEN_WARNINGS.join(self.warnings)}))
        self.write(closed)
        told = "; ".join(filter(None, (closed.reason, disturbed)))
        why = f" ({told})" if told else ""
        good = closed.outcome in (RunOutcome.OK, RunOutcome.PRUNED)
        self.display.finish(f"{work.name}: {closed.outcome}{why}, {seconds:.0f} s", good=good)
        return Ended(RunOutcome(closed.outcome), phase, closed.reason, latest, disturbed, "repeats" in work.tags)

    def _check_clock(self) -> bool:
        """Warns if the system's clock was set since the last call: the campaign's times go on by its own."""
        moved = clock.CLOCK.set_back()
        if moved:
            direction = "back" if moved > 0 else "forward"
            by = durations.told(abs(moved))
            self.warn((f"the system clock was set {direction} by {by}; the times of this campaign go on as they began",))
        return bool(moved)

    def _settle(self) -> None:
        """What was measured goes to the server before anything else is."""
        self._uploader.wake()
        self.deliver(30.0)  # packing a model while the next cell is timed would be seen in its times
        self._tell_trouble()
        self.check_stop()

    def leave_out(self, setup: Setup, work: Work, outcome: RunOutcome, reason: str) -> None:
        """A cell that need not be run has its run all the same: what it would have found is known."""
        self.check_stop()
        spec = self._spec(setup, work)
        self.write(self._opened(setup, spec, work))
        self.write(RunClosed(spec.run, now_ms(), outcome, reason[:1_000]))
        self.display.finish(f"{work.name}: {outcome} ({reason})")

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
        treatment = work.treatment
        settings = treatment.merged(setup.settings)
        untold = settings_.silent(settings) | settings_.of_group(settings, "cluster")  # a checkpoint goes on wherever that is
        return CellSpec(
            run=work.run,
            workload=setup.module.workload,
            stage=treatment.stage,
            framework=treatment.framework,
            device=devices.resolve(settings.device, settings),
            threads=threads_of_cells(settings),
            block=work.block,
            settings={k: v for k, v in devices.values_of_cell(settings).items() if k not in untold},
            inputs=dict(work.inputs),
            journal=str(self.folder.resolve()),
            folder=f"cells/{work.key}/{work.run[:8]}",
            checkpoint=str(checkpoint_of(self.folder, work.key)),
            experiment=self.experiment,
            campaign=self.run_id,
            cpus=devices.cpus_of_cells(settings),
            nodes=self.nodes,
            environment=dict(treatment.environment),
            clock=clock.CLOCK.origin,
        )

    @contextmanager
    def _sparing(self, settings: Sequence[CampaignSettings]) -> Iterator[None]:
        """Keep this process out of the way of cells with these settings."""
        self._uploader.sparing = True
        try:
            with devices.staying_on(devices.cpus_of_parent(settings)):
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
        own, prepared = work.treatment.merged(setup.settings), setup.prepared_for(work.treatment)
        logged = logged_settings(setup.settings, work.treatment)
        common = {
            "campaign": f"run:{self.run}",
            "model": own_models.labelled(work.treatment.settings.get("model") or setup.module.models(own)[0]),
            "dataset": prepared.dataset.name,
            "settings_hash": settings_hash(logged, settings_.immaterial(own)),
            **origin_tags(setup.study, setup.settings, spec.framework),
            **setup.prepared.tags,
            **prepared.tags,
            **self.placed,
            **({} if own.pin == "none" else devices.placement(own).tags),
            **({"warnings": BETWEEN_WARNINGS.join(self.warnings)} if self.warnings else {}),
        }
        params = {**logged, "framework": spec.framework}
        name = work.name
        if work.tags["kind"] == RunKind.CELL:  # charts call cells of every campaign by their names
            left_out = settings_.immaterial(own) | work.treatment.settings.keys()
            name = " · ".join(filter(None, [name, told_apart(setup.study, setup.settings, left_out)]))
        return RunOpened(spec.run, now_ms(), self.experiment, name, {**common, **work.tags}, params)

    def _note(self, setup: Setup, spec: CellSpec, work: Work, latest: Mapping[str, float]) -> dict[str, str]:
        """The run's description: what it was, what it found, where it belongs."""
        from experiments.comparison.report import wording

        own, prepared = work.treatment.merged(setup.settings), setup.prepared_for(work.treatment)
        told = [one for one in studies.outcomes(setup.module, own) if one.metric in latest]
        found = [f"- {one.label}: **{wording.quantity(latest[one.metric], one)}**" for one in told]
        where = f"on `{spec.device}` with {spec.threads} thread{'s' * (spec.threads != 1)}; data `{prepared.dataset.name}`"
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
                f"! the tracking server takes no records now ({self._uploader.trouble}); they wait in {self.folder}",
                style="bold yellow",
            )
        elif not self._uploader.trouble and self._trouble_told:
            self._trouble_told = False
            self.display.say("  the tracking server is back and has all records")

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
        self.write(Artifact(self.run, str(path.relative_to(self.folder)), folder))

    def keep_metrics(self, values: Mapping[str, float]) -> None:
        """Records metrics of the campaign's own run."""
        if values:
            self.write(Metrics(self.run, tuple(Point(key, value, 0, now_ms()) for key, value in values.items())))

    @property
    def full_disk(self) -> str:
        """Why the journal's disk did not take a record, since the last cell began; empty where it took them all."""
        return self._full_disk


def checkpoint_of(folder: Path, key: str) -> Path:
    """Where a cell of the campaign in this folder keeps its checkpoint."""
    return (folder / "cells" / key / "checkpoint").resolve()


def origin_tags(study: str, settings: CampaignSettings, framework: str = "") -> dict[str, str]:
    """Who ran what where: the same on a campaign's run and on its cells', but for versions of another interpreter's packages.

    framework: that of a cell.
    """
    commit, python = provenance.commit(), interpreters.separate(framework, settings.pythons)
    optional = {"commit": commit, "team": settings.team, "interpreter": python}
    return {
        "machine": provenance.fingerprint(),
        "environment": environment_digest(settings),
        **provenance.environment_tags(frameworks.distributions(), interpreters.packages(framework, python)),
        **{name: text for name, text in optional.items() if text},
        **source(study, commit),
    }


def environment_digest(settings: CampaignSettings) -> str:
    """Equal where machine and packages are, also those of other interpreters."""
    return provenance.environment_digest(frameworks.distributions(), interpreters.all_packages(settings.pythons))


def told_apart(study: str, settings: CampaignSettings, left_out: Collection[str]) -> str:
    """The first settings that are not the preset's, as names of runs tell them; empty where there is none.

    left_out: settings that are not told.
    """
    module = studies.load(study)
    preset = settings_.parse(module.settings, module.presets, {"preset": settings.preset})
    shared = settings_.as_text(CampaignSettings())  # the study's own settings come first
    before, now = settings_.as_text(preset), settings_.as_text(settings)
    ordered = sorted(now, key=lambda name: name in shared)
    own = {name: now[name] for name in ordered if now[name] != before[name] and name not in left_out}
    told = [f"{name}={text or 'none'}" for name, text in list(own.items())[:NAMED]]
    return ", ".join([*told, *([f"{len(own) - NAMED} more"] if len(own) > NAMED else [])])


def threads_of_cells(settings: CampaignSettings) -> int:
    """The CPU threads of every framework alike: as many as were asked for, or one for each CPU that cells may use."""
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
    own = {f"{variation.ENVIRONMENT}{name}": text or variation.UNSET for name, text in treatment.environment.items()}
    period = settings_.to_text(devices.sensor_seconds(settings))
    resolved = {"device": device, "threads": str(threads), "sensor_seconds": period, "timing": devices.timing(settings)}
    return {**texts, **own, **resolved}


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
    return clock.now_ms()
