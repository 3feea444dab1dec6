"""A job's part of a campaign, on the node that it was given: blocks, each run whole, by the code that runs them anywhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.campaign import slurm
from experiments.campaign.campaign import Campaign, ended_cells
from experiments.campaign.readiness import MachineProbe
from experiments.campaign.runner import Ended, Runner, Setup, checkpoint_of, now_ms
from experiments.config import devices
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import STOP, Interrupted
from experiments.contract import Job, Node
from experiments.planning.design import Cell
from experiments.planning.plan import Plan
from tracking import journal, provenance
from tracking.errors import EvenhandError, WrongCall
from tracking.journal import Journal
from tracking.records import RunClosed, RunOpened, RunOutcome

# A job that was requeued so often without an end of a cell, or a checkpoint, would go on for ever.
MAX_FRUITLESS = 3


@dataclass
class Share:
    """What a job is sent as, and again after its time was over or its node failed: called, it goes on with what is missing.

    campaign: the folder of the campaign. own: that of the job's journal, which the campaign's process collects.
    known: how cells of these blocks did in earlier launches, by key.
    fruitless: how often in a row its time was over with nothing to show for it. requeued: why it was interrupted before.
    """

    campaign: Path
    own: Path
    setup: Setup
    plan: Plan
    blocks: tuple[tuple[Cell, ...], ...] = ()
    before: tuple[Job, ...] = ()
    known: Mapping[str, Ended] = field(default_factory=dict)
    fruitless: int = 0
    requeued: str = "its node failed, or Slurm put the job back into the queue"

    def __call__(self) -> int:
        """Returns the bytes of its journal when all is done."""
        STOP.hold()
        STOP.watch()
        records = Journal(self.own)
        self._progress_before = self._progress()
        close_what_is_open(records, self.requeued)
        with Display() as display:
            campaign = Campaign(self.setup, self.plan, records, display, part_of=self.campaign)
            try:
                self._work(campaign)
            except Interrupted:  # no result: whoever waits for one asks Slurm what became of the job
                campaign.runner.leave()
                sys.exit(128 + STOP.number)
            if left := len(records.waiting()):
                raise EvenhandError(f"{left} records could not be written: {campaign.runner.full_disk}")
            size = records.size
            campaign.runner.leave()
        return size

    def checkpoint(self) -> Any:
        """Called by submitit shortly before Slurm ends the job: what goes on after it; None where that is in vain."""
        more = 0 if self._progress() != self._progress_before else self.fruitless + 1
        if more >= MAX_FRUITLESS:
            return None
        return slurm.send_again(replace(self, fruitless=more, requeued="its job reached the time limit, or gave way to another"))

    def _work(self, campaign: Campaign) -> None:
        runner = campaign.runner
        settle(runner, self.setup.settings)
        cells = [cell for block in self.blocks for cell in block]
        with runner.signals():
            campaign.recall(cells, self._known(cells))
            for job in self.before:
                campaign.extract(job)
            for block in self.blocks:
                campaign.block(block)

    def _progress(self) -> tuple[int, ...]:
        """What changes when a cell ends by itself, or has trained an epoch more."""
        ends = (one for one in journal.read_all(self.own) if isinstance(one, RunClosed))
        folders = [checkpoint_of(self.campaign, cell.key) for block in self.blocks for cell in block]
        kept = [folder.stat().st_mtime_ns for folder in folders if folder.exists()]
        return sum(one.outcome != RunOutcome.INTERRUPTED for one in ends), *kept

    def _known(self, cells: Iterable[Cell]) -> dict[str, Ended]:
        """How cells ended, but for those of blocks that another machine began: a block has one machine, so it begins anew."""
        ended = {**self.known, **ended_cells(self.own)}
        elsewhere = blocks_elsewhere(ended) | begun_elsewhere(self.own)
        for cell in cells:
            if cell.block in elsewhere:
                shutil.rmtree(checkpoint_of(self.campaign, cell.key), ignore_errors=True)
        keys = {cell.key for cell in cells if cell.block in elsewhere}
        return {key: end for key, end in ended.items() if key not in keys}


def settle(runner: Runner, settings: CampaignSettings) -> None:
    """What a runner knows of its machine, on the node where cells run. Raises WrongCall where it is to be idle and is not."""
    nodes = slurm.nodes()
    runner.placed, runner.nodes = {**slurm.here(), **tags(nodes)}, nodes
    runner.called = f"job {runner.placed['slurm.job']}"
    runner.idle = MachineProbe(devices.of(settings)[0], settings.workers_of_a_cell).idle()
    if settings.require_idle_machine and runner.idle.troubles:
        node = runner.placed["slurm.node"]
        raise WrongCall(f"require_idle_machine=true: {runner.idle.troubles[0]} (node {node}); try again, or with false")
    runner.warnings += [line for line in runner.idle.troubles if line not in runner.warnings]


def tags(nodes: Sequence[Node]) -> dict[str, str]:
    """Of a job that has several nodes: their names, and as `machine` all of them together: others are another machine."""
    return {"slurm.nodes": ",".join(node.name for node in nodes), "machine": machine()} if nodes else {}


def machine() -> str:
    """The fingerprint of what this job's cells run on."""
    return provenance.fingerprint(sorted(node.name for node in slurm.nodes()))


def close_what_is_open(records: Journal, why: str) -> None:
    """Runs that an earlier life of this job has left open end as interrupted."""
    opened: dict[str, None] = {}
    for record in journal.read_all(records.folder):
        if isinstance(record, RunOpened):
            opened[record.run] = None
        elif isinstance(record, RunClosed):
            opened.pop(record.run, None)
    for run in opened:
        records.append(RunClosed(run, now_ms(), RunOutcome.INTERRUPTED, why))


def blocks_elsewhere(ended: Mapping[str, Ended]) -> set[int]:
    """Blocks of which a cell has ended on another machine than this one. ended: by the cell's key."""
    here = machine()
    return {int(key.split("-")[1]) for key, one in ended.items() if one.machine not in ("", here)}


def begun_elsewhere(folder: Path) -> set[int]:
    """Blocks of which this journal holds a cell that began on another machine, whether it ended or not."""
    here = machine()
    opened = (record.tags for record in journal.read_all(folder) if isinstance(record, RunOpened))
    return {int(tags["block"]) for tags in opened if "cell" in tags and tags.get("machine", here) != here}
