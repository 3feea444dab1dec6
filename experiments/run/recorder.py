"""Records of a campaign's or a sweep's run: into its journal, then to MLflow."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments import metrics
from experiments.config import durations, shell
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import STOP, Interrupted
from experiments.contract import Node
from experiments.run import machine_state
from experiments.run.machine_state import MachineState
from experiments.run.sensing import write_metrics
from tracking import clock, journal
from tracking.journal import Journal, JournalError
from tracking.records import (
    BETWEEN_WARNINGS,
    SCRIPT_OF,
    Artifact,
    Metrics,
    Record,
    RunClosed,
    RunOutcome,
    Tags,
)
from tracking.sensors import Sensors
from tracking.store import Store
from tracking.upload import BufferedUploader, Uploader

ALERT = "bold yellow"


class Recorder:
    """Records of the run that cells belong to; `close` ends the run, whatever happened.

    Args:
        part_of: Folder of the campaign, if these records are a part of it that another process
            collects and delivers.

    Attributes:
        place_tags: Of where such a part runs.
        called: The name of this process in the reason of a cell that a signal ended.
        nodes: Nodes that cells may use, see `CellSpec`.
        is_part: True if these records are a part of a campaign.
    """

    def __init__(
        self, records: Journal, display: Display, device: str, part_of: Path | None = None
    ) -> None:
        self.folder = part_of or records.folder
        description = journal.read_campaign(self.folder)
        self.is_part = part_of is not None
        self.run: str = description["run"]
        self.run_id: str = description["run_id"]
        self.experiment: str = description["experiment"]
        self._experiment_id: str = description.get("experiment_id", "")
        self.resume_command = _resume_command(description, self.folder.parent)
        self.machine = MachineState.from_values(description.get("idle", {}))
        self.place_tags: dict[str, str] = {}
        self.called = "the campaign"
        self.nodes: tuple[Node, ...] = ()
        self.warnings: list[str] = []
        self.full_disk = ""
        self.display = display
        self.store = Store()
        self.store.expect([], self.experiment, {self.run: self.run_id})
        self._journal = records
        self._uploader = (
            BufferedUploader() if part_of else Uploader(records, self.store, self.run_id)
        )
        self._uploader.start()
        self._sensors = Sensors(device=device)
        self._trouble = ""

    # ---- records

    def write(self, record: Record) -> None:
        """Append to the journal. A full disk is remembered: it ends the cell, not the campaign."""
        records = shown_and_details(record) if isinstance(record, Metrics) else [record]
        try:
            for part in records:
                self._journal.append(part)
        except JournalError as error:
            self.full_disk = str(error)

    def tag(self, **tags: str) -> None:
        self.write(Tags(self.run, tags))

    def keep_file(self, path: Path) -> None:
        """Record a file or folder below the journal's as an artifact of the campaign's run."""
        self.write(Artifact(self.run, str(path.relative_to(self.folder))))

    def keep_metrics(self, values: Mapping[str, float]) -> None:
        write_metrics(self.run, values, self.write)

    def warn(self, warnings: Sequence[str]) -> None:
        """Show warnings, and record them on this run and on those of the cells to come."""
        self.warnings += [warning for warning in warnings if warning not in self.warnings]
        for warning in warnings:
            self.display.say(f"! {warning}", style=ALERT)
        if warnings:
            self.tag(**self.warning_tags)

    @property
    def warning_tags(self) -> dict[str, str]:
        return {"warnings": BETWEEN_WARNINGS.join(self.warnings)} if self.warnings else {}

    def variables_of_scripts(self, run: str) -> dict[str, str | None]:
        """Return the environment variables by which a script logs next to a cell's run.

        Its runs carry a tag, and are never that of the cell: a script that sets an experiment or
        a server crashes in a run that it has not opened.
        """
        if not self._experiment_id:  # a journal without it
            self._experiment_id = self.store.experiment_id(self.experiment)
        context = {**_run_context(), SCRIPT_OF: run}
        return {
            "MLFLOW_TRACKING_URI": self.store.absolute_uri,
            "MLFLOW_EXPERIMENT_ID": self._experiment_id,
            "MLFLOW_RUN_CONTEXT": json.dumps(context),
            "EVENHAND_CONTEXT": "off",  # the cell has these tags, and a script is timed
        }

    # ---- around a cell

    def begin(self, title: str) -> None:
        """Prepare for a cell, or several that take turns. Raises Interrupted if a signal came."""
        self.check_stop()
        self.check_clock()
        self.full_disk = ""
        self.display.begin(title)

    @contextmanager
    def sparing(self) -> Iterator[None]:
        """Send records seldom, because something is being timed on this machine."""
        self._uploader.sparing = True
        try:
            yield
        finally:
            self._uploader.sparing = False

    def settle(self) -> None:
        """Deliver records before the next cell. Raises Interrupted if a signal came."""
        self.wake()
        self.deliver(30.0)  # work of the uploader would be seen in the next cell's times
        trouble = self._uploader.trouble
        if trouble and not self._trouble:
            text = f"! the tracking server takes no records ({trouble}); {self.folder} has them"
            self.display.say(text, style=ALERT)
        elif self._trouble and not trouble:
            self.display.say("  the tracking server is back and has all records")
        self._trouble = trouble
        self.check_stop()

    def wake(self) -> None:
        self._uploader.wake()

    def check_clock(self) -> bool:
        """Warn if the system's clock was set since the last call: the campaign's times go on."""
        moved = clock.CLOCK.set_back()
        if moved:
            direction = "back" if moved > 0 else "forward"
            text = f"{direction} by {durations.format_duration(abs(moved))}"
            self.warn([f"the system clock was set {text}; this campaign keeps its own"])
        return bool(moved)

    def cool_down(self, name: str, limit_seconds: float) -> dict[str, str]:
        """Wait for the temperature of the start, if there is a sensor. Return tags of the wait."""
        if not (limit_seconds and self.machine.celsius):
            return {}

        def go_on(warm: str, waited: float) -> bool:
            self.display.step(f"cool-down before {name}: {warm}", int(waited), int(limit_seconds))
            return not STOP.number

        self.display.begin("cool-down")
        cooled = machine_state.cool_down(self.machine.celsius, self._sensors, limit_seconds, go_on)
        return {"cool_down": cooled} if cooled else {}

    # ---- stopping

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Delay signals: they end the running cell and what follows it, in order."""
        STOP.hold()
        try:
            yield
            self.check_stop()
        finally:
            STOP.release()

    def why_stop(self) -> str:
        """Return why what runs must end now; empty if it may go on."""
        return f"{self.called} got {STOP.name}" if STOP.number else self.full_disk

    def check_stop(self) -> None:
        if STOP.number:
            raise self.interrupted("; finished cells are kept")

    def interrupted(self, where: str) -> Interrupted:
        """Return the error for a stopped campaign, with the command that continues it."""
        return Interrupted(f"stopped by {STOP.name}{where}", self.resume_command)

    # ---- delivery

    def deliver(self, timeout_seconds: float = 120.0) -> bool:
        """Send everything measured so far to the server. Return False if it is not reachable."""
        deadline = time.monotonic() + timeout_seconds
        while not self._uploader.up_to_date:
            if self._uploader.stuck or time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def close(
        self, outcome: RunOutcome, reason: str = "", tags: Mapping[str, str] | None = None
    ) -> bool:
        """End the run and deliver its records. Return True if the server has all of them."""
        if tags:
            self.write(Tags(self.run, dict(tags)))
        self.write(RunClosed(self.run, clock.now_ms(), outcome, reason))
        return self.leave()

    def leave(self) -> bool:
        """Deliver what can be delivered and close the journal; the run stays open.

        Returns:
            True if the server has all records; what it lacks is shown otherwise.
        """
        uploader = self._uploader
        is_delivered = uploader.finish(5.0 if uploader.trouble else 120.0)
        again = shell.command("replay", "--journal", str(self.folder))
        reason = uploader.trouble or "it takes longer than this process waits"
        waiting = f"{uploader.undelivered:,} records wait: {self.store.uri}: {reason}"
        troubles = (uploader.refused, uploader.damaged.values(), "" if is_delivered else waiting)
        for line in journal.delivery_troubles(*troubles, again):
            self.display.say(f"! {line}", style=ALERT)
        self._journal.close()
        return is_delivered


def shown_and_details(record: Metrics) -> list[Record]:
    """Return the metrics that MLflow shows, and those that only programs read, as two records.

    What is shown in milliseconds is in both: comparisons read the measured seconds.
    """
    names = {point.key: metrics.shown_name(point.key) for point in record.points}
    shown = tuple(
        point
        if names[point.key] == point.key
        else replace(point, key=names[point.key], value=1e3 * point.value)
        for point in record.points
        if names[point.key]
    )
    details = tuple(point for point in record.points if names[point.key] != point.key)
    records = [Metrics(record.run, shown), Metrics(record.run, details, detail=True)]
    return [part for part in records if part.points]


def _run_context() -> dict[str, str]:
    """Return the tags that the user wants on every run."""
    with suppress(ValueError):
        return dict(json.loads(os.environ.get("MLFLOW_RUN_CONTEXT", "{}")))
    return {}


def _resume_command(description: Mapping[str, Any], root: Path) -> str:
    """Return the shell command that continues the work; `root` has the journals."""
    storage = description["sweep"]["storage"] if "joined" in description else ""
    shared = [f"--storage={storage}"] if storage and not shell.has_password(storage) else []
    run_id, study = description["run_id"], description["study"]
    return shell.from_anywhere(study, f"--resume={run_id}", *journal_option(root), *shared)


def journal_option(root: Path) -> list[str]:
    """Return the option that names the folder of the journals, if it is not the default."""
    is_default = root.resolve() == Path(CampaignSettings.journal).resolve()
    return [] if is_default else [f"--journal={root.resolve()}"]
