"""Job's part of a campaign on its node: whole blocks, run by the code that runs them anywhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.config import devices
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import STOP, Interrupted
from experiments.contract import Job
from experiments.planning.design import Cell
from experiments.run import backends, journal_runs
from experiments.run.backends import cluster
from experiments.run.campaign import Campaign
from experiments.run.cell_run import checkpoint_of
from experiments.run.journal_runs import block_of
from experiments.run.machine_state import MachineProbe
from experiments.run.preparation import PreparedCampaign
from experiments.run.recorder import Recorder
from experiments.run.scheduler import CellResult
from tracking import journal, provenance
from tracking.errors import EvenhandError
from tracking.journal import Journal
from tracking.records import RunClosed, RunOutcome

# A job that is requeued so often without the end of a cell, or a checkpoint, makes no progress.
MAX_FRUITLESS = 3


@dataclass
class SlurmTask:
    """Task of a job; after it was requeued, it goes on with what is missing.

    Attributes:
        campaign: Folder of the campaign.
        own: Folder of the job's journal, which the campaign's process collects.
        results: Of cells of these blocks in earlier launches, by key.
        fruitless: How often in a row its time was over without progress.
        interruption: Why it was interrupted before.
    """

    campaign: Path
    own: Path
    prepared: PreparedCampaign
    blocks: tuple[tuple[Cell, ...], ...] = ()
    before: tuple[Job, ...] = ()
    results: Mapping[str, CellResult] = field(default_factory=dict)
    fruitless: int = 0
    interruption: str = "its node failed, or Slurm put the job back into the queue"

    @property
    def cells(self) -> list[Cell]:
        return [cell for block in self.blocks for cell in block]

    def __call__(self) -> int:
        """Run the task. Return the bytes of its journal."""
        STOP.hold()
        STOP.watch()
        records = Journal(self.own)
        self._progress_before = self._progress()
        journal_runs.close_open_runs(records, self.interruption)
        with Display() as display:
            campaign = Campaign(self.prepared, records, display, part_of=self.campaign)
            recorder = campaign.recorder
            try:
                self._run(campaign)
            except Interrupted:  # no result: the campaign's process asks Slurm for the reason
                recorder.leave()
                sys.exit(128 + STOP.number)
            if lost := len(records.waiting()):
                raise EvenhandError(f"{lost} records could not be written: {recorder.full_disk}")
            size = records.size
            recorder.leave()
        return size

    def checkpoint(self) -> Any:
        """Return the task that goes on after this job's time; None without progress. For submitit."""
        fruitless = 0 if self._progress() != self._progress_before else self.fruitless + 1
        if fruitless >= MAX_FRUITLESS:
            return None
        why = "its job reached the time limit, or gave way to another"
        return cluster.requeued(replace(self, fruitless=fruitless, interruption=why))

    def _run(self, campaign: Campaign) -> None:
        prepare_node(campaign.recorder, self.prepared.settings)
        backend = backends.local(campaign)
        with campaign.recorder.signals():
            campaign.schedule.recall(self._results(self.cells))
            backend.extract(self.before)
            for _ in backend.blocks(self.blocks):
                pass

    def _progress(self) -> tuple[int, ...]:
        """Return numbers that change when a cell ends by itself, or has trained one more epoch."""
        records = journal.read_all(self.own)
        ends = [record.outcome for record in records if isinstance(record, RunClosed)]
        folders = [checkpoint_of(self.campaign, cell.key) for cell in self.cells]
        saved = [folder.stat().st_mtime_ns for folder in folders if folder.exists()]
        return sum(outcome != RunOutcome.INTERRUPTED for outcome in ends), *saved

    def _results(self, cells: Sequence[Cell]) -> dict[str, CellResult]:
        """Return results of cells, without blocks that another machine began: they begin anew."""
        results = {**self.results, **journal_runs.cell_results(self.own)}
        this = machine()
        begun = [run.tags for run in journal_runs.read(self.own).values() if "cell" in run.tags]
        elsewhere = {key for key, result in results.items() if result.machine not in ("", this)}
        elsewhere |= {tags["cell"] for tags in begun if tags.get("machine", this) != this}
        blocks = set(map(block_of, elsewhere))
        for cell in cells:
            if cell.block in blocks:
                shutil.rmtree(checkpoint_of(self.campaign, cell.key), ignore_errors=True)
        return {key: result for key, result in results.items() if block_of(key) not in blocks}


def prepare_node(recorder: Recorder, settings: CampaignSettings) -> None:
    """Set a recorder's node and machine state."""
    recorder.nodes, recorder.place_tags = cluster.nodes(), cluster.here()
    job = recorder.place_tags["slurm.job"]
    if recorder.nodes:  # together they are the machine
        names = ",".join(node.name for node in recorder.nodes)
        recorder.place_tags |= {"slurm.nodes": names, "machine": machine()}
    recorder.called = f"job {job}"
    recorder.machine = MachineProbe(devices.of(settings)[0], settings.workers_of_a_cell).idle()
    troubles = recorder.machine.troubles
    recorder.warnings += [line for line in troubles if line not in recorder.warnings]


def machine() -> str:
    """Return the fingerprint of what this job's cells run on."""
    return provenance.fingerprint(sorted(node.name for node in cluster.nodes()))
