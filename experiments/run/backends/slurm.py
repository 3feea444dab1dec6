"""Campaign on a cluster: blocks are dealt to jobs, whose journals are collected."""

from __future__ import annotations

import shutil
import sys
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.config import devices
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import STOP, Interrupted
from experiments.contract import Job
from experiments.planning.design import Cell
from experiments.run import backends, cell_run, journal_runs, machine_state
from experiments.run.backends import JOBS, BlockResult, cluster
from experiments.run.backends.cluster import SubmittedJob
from experiments.run.campaign import Campaign
from experiments.run.cell_run import checkpoint_of
from experiments.run.journal_runs import block_of
from experiments.run.preparation import PreparedCampaign
from experiments.run.recorder import Recorder
from experiments.run.scheduler import CellResult, Skip, planned_looks
from tracking import clock, journal, provenance
from tracking.errors import EvenhandError
from tracking.journal import Journal
from tracking.records import BETWEEN_WARNINGS, RunClosed, RunOpened, RunOutcome
from tracking.sensors import load

SUBMITTED = "submitted"
COLLECT_SECONDS = 0.5
# A file system that other machines write to may show their last lines late.
SHOWN_WITHIN_SECONDS = 60.0
# Time for cancelled jobs to end.
END_SECONDS = 60.0
# A job that is requeued so often without the end of a cell, or a checkpoint, makes no progress.
MAX_FRUITLESS = 3


@dataclass
class SlurmTask:
    """Task of a job; after it was requeued, it goes on with what is missing.

    Attributes:
        campaign: Folder of the campaign.
        journal_folder: Of the job, which the campaign's process collects.
        results: Of cells of these blocks in earlier launches, by key.
        fruitless: How often in a row its time was over without progress.
        interruption: Why it was interrupted before.
    """

    campaign: Path
    journal_folder: Path
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
        records = Journal(self.journal_folder)
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
        """Return for submitit the task that goes on after this job; None without progress."""
        fruitless = 0 if self._progress() != self._progress_before else self.fruitless + 1
        if fruitless >= MAX_FRUITLESS:
            return None
        why = "its job reached the time limit, or gave way to another"
        return cluster.requeued(replace(self, fruitless=fruitless, interruption=why))

    def _run(self, campaign: Campaign) -> None:
        prepare_node(campaign.recorder, self.prepared.settings)
        backend = backends.local_backend(campaign)
        with campaign.recorder.signals():
            campaign.schedule.recall(self._results(self.cells))
            backend.extract(self.before)
            for _ in backend.blocks(self.blocks):
                pass

    def _progress(self) -> tuple[int, ...]:
        """Return numbers that change when a cell ends by itself, or has trained one more epoch."""
        records = journal.read_all(self.journal_folder)
        ends = [record.outcome for record in records if isinstance(record, RunClosed)]
        folders = [checkpoint_of(self.campaign, cell.key) for cell in self.cells]
        saved = [folder.stat().st_mtime_ns for folder in folders if folder.exists()]
        return sum(outcome != RunOutcome.INTERRUPTED for outcome in ends), *saved

    def _results(self, cells: Sequence[Cell]) -> dict[str, CellResult]:
        """Return results of cells, without blocks that another machine began: they begin anew."""
        results = {**self.results, **journal_runs.cell_results(self.journal_folder)}
        this = machine()
        begun = [
            run.tags
            for run in journal_runs.read(self.journal_folder).values()
            if "cell" in run.tags
        ]
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
    if recorder.nodes:  # together they are the machine
        names = ",".join(node.name for node in recorder.nodes)
        recorder.place_tags |= {"slurm.nodes": names, "machine": machine()}
    recorder.called = f"job {recorder.place_tags['slurm.job']}"
    device, workers = devices.resolve_all(settings)[0], settings.workers_of_a_cell
    recorder.machine = machine_state.observe(load.look(), device, workers)
    troubles = recorder.machine.troubles
    recorder.warnings += [line for line in troubles if line not in recorder.warnings]


def machine() -> str:
    return provenance.fingerprint(sorted(node.name for node in cluster.nodes()))


@dataclass
class JobTail:
    """Job's journal as far as it has been collected.

    Attributes:
        open: Runs that have not ended.
        outcomes: Last outcome of each cell by key, and of each extraction by framework.
    """

    job: SubmittedJob
    offset: int = 0
    block: int = 0
    open: dict[str, RunOpened] = field(default_factory=dict)
    outcomes: dict[str, RunOutcome] = field(default_factory=dict)
    node: str = ""
    is_over: bool = False

    @property
    def task(self) -> SlurmTask:
        task: SlurmTask = self.job.task
        return task

    def note_closed(self, record: RunClosed) -> RunOpened | None:
        if opened := self.open.pop(record.run, None):
            key = opened.tags.get("cell") or opened.tags["framework"]
            self.outcomes[key] = RunOutcome(record.outcome)
        return opened


class Slurm:
    """Array of jobs with a whole node each, to which the blocks are dealt."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign, self._recorder = campaign, campaign.recorder
        self._schedule, self._settings = campaign.schedule, campaign.settings
        self._folder = campaign.recorder.folder.resolve() / JOBS
        self._node = ""

    def extract(self, jobs: Sequence[Job]) -> list[bool]:
        if not jobs:
            return []
        (tail,) = self._submit([self._task(before=tuple(jobs))])
        for _ in self._follow([tail]):
            pass
        return [tail.outcomes.get(job.framework) == RunOutcome.OK for job in jobs]

    def blocks(self, blocks: Sequence[Sequence[Cell]]) -> Generator[BlockResult]:
        """Run blocks as jobs; those up to the next look are submitted together."""
        looks = planned_looks(self._settings) if self._settings.until_settled else ()
        waiting: list[Sequence[Cell]] = []
        for block in blocks:
            waiting.append(block)
            if block[0].block in looks or block is blocks[-1]:
                yield from self._measured(waiting)
                waiting = []

    def _measured(self, blocks: Sequence[Sequence[Cell]]) -> Generator[BlockResult]:
        missing = [tuple(block) for block in blocks if not self._schedule.is_done(block)]
        count = min(self._settings.nodes // self._settings.nodes_of_a_job, len(missing))
        tails = self._submit([self._task(tuple(missing[start::count])) for start in range(count)])
        tail_of = {block[0].block: tail for tail in tails for block in tail.task.blocks}
        waiting = list(blocks)
        for _ in self._follow(tails):
            while waiting:
                number = waiting[0][0].block
                tail = tail_of.get(number)
                if tail and not tail.is_over and tail.block <= number:
                    break
                yield self._block_result(waiting.pop(0), tail)

    def _block_result(self, block: Sequence[Cell], tail: JobTail | None) -> BlockResult:
        number = block[0].block
        if not tail:
            return BlockResult(number, ran_now=False, ok=True)
        counts, is_done = self._schedule.counts, self._schedule.is_done
        ok = [is_done([cell]) or counts(tail.outcomes.get(cell.key)) for cell in block]
        return BlockResult(number, ran_now=True, ok=all(ok))

    # ---- jobs

    def _task(
        self, blocks: tuple[tuple[Cell, ...], ...] = (), before: tuple[Job, ...] = ()
    ) -> SlurmTask:
        numbers = {block[0].block for block in blocks}
        results = {
            key: result
            for key, result in self._campaign.results.items()
            if block_of(key) in numbers
        }
        job_folder = self._folder / uuid.uuid4().hex[:8]
        folder, prepared = self._recorder.folder.resolve(), self._campaign.prepared
        return SlurmTask(folder, job_folder, prepared, blocks, before, results)

    def _submit(self, tasks: Sequence[SlurmTask]) -> list[JobTail]:
        """Submit an array. A campaign that has the nodes of one job keeps them."""
        if not tasks:
            return []
        is_single = self._settings.nodes == self._settings.nodes_of_a_job
        more: dict[str, Any] = {"nodelist": self._node} if self._node and is_single else {}
        name, folder = name_of(self._recorder.run_id), self._folder / SUBMITTED
        return [JobTail(job) for job in cluster.submit(self._settings, folder, name, tasks, **more)]

    def _follow(self, tails: Sequence[JobTail]) -> Generator[None]:
        """Collect until every job is over; left before, or on a signal, jobs are ended first."""
        self._recorder.display.begin("jobs")
        try:
            with closing(cluster.follow([tail.job for tail in tails])) as rounds:
                for running in rounds:
                    ids = {job.id for job in running}
                    for tail in tails:
                        if tail.is_over:
                            continue
                        self._collect(tail)
                        if tail.job.id not in ids:
                            self._end(tail)
                    self._show(tails)
                    yield
                    if STOP.number:
                        break
        finally:
            self._stop([tail for tail in tails if not tail.is_over])
        self._recorder.check_stop()

    def _collect(self, tail: JobTail) -> None:
        """Copy records to the campaign's journal; after a kill the next process repeats some."""
        job_folder = tail.task.journal_folder
        if not (job_folder / journal.RECORDS).exists():
            return
        before = tail.offset
        records, tail.offset = journal.read(job_folder, before)
        for record in records:
            if isinstance(record, RunOpened):
                tags = record.tags
                tail.open[record.run], tail.block = record, int(tags.get("block", 0))
                tail.node = tags.get("slurm.nodes") or tags.get("slurm.node", "")
                warnings = filter(None, tags.get("warnings", "").split(BETWEEN_WARNINGS))
                seen = self._recorder.warnings
                self._recorder.warn([line for line in warnings if line not in seen])
            self._recorder.write(record)
            if isinstance(record, RunClosed) and (opened := tail.note_closed(record)):
                seconds = (record.time_ms - opened.time_ms) / 1_000
                why = f" ({record.reason})" if record.reason else ""
                is_good = record.outcome in (RunOutcome.OK, RunOutcome.PRUNED)
                text = f"{opened.name}: {record.outcome}{why}, {seconds:.0f} s, {tail.node}"
                self._recorder.display.finish(text, good=is_good)
        if tail.offset != before:
            journal.mark_delivered(job_folder, tail.offset, "")
            self._node = tail.node or self._node

    def _end(self, tail: JobTail) -> None:
        """Close the runs of a job that is over, and record the cells that it did not begin."""
        try:
            self._collect_all(tail, tail.job.result())
            outcome = RunOutcome.FAILED
            reason = f"job {tail.job.id} ended without a record of this cell"
        except EvenhandError as error:
            self._collect(tail)
            outcome = RunOutcome.INTERRUPTED if tail.job.state == "CANCELLED" else RunOutcome.FAILED
            reason = self._recorder.full_disk or str(error)
        tail.is_over = True
        self._close(tail, outcome, reason)
        if STOP.number:
            return
        for cell in (cell for block in tail.task.blocks for cell in block):
            if cell.key not in tail.outcomes and not self._schedule.is_done([cell]):
                tail.outcomes[cell.key] = outcome
                task = self._campaign.task(cell, self._schedule.treatments[cell.treatment])
                skip = Skip(outcome, reason)
                cell_run.leave_out(self._recorder, self._campaign.prepared, task, skip)

    def _close(self, tail: JobTail, outcome: RunOutcome, reason: str) -> None:
        for run, opened in list(tail.open.items()):
            closed = RunClosed(run, clock.now_ms(), outcome, reason[:1_000])
            self._recorder.write(closed)
            tail.note_closed(closed)
            self._recorder.display.finish(f"{opened.name}: {outcome} ({reason})", good=False)

    def _collect_all(self, tail: JobTail, size: int) -> None:
        deadline = time.monotonic() + SHOWN_WITHIN_SECONDS
        self._collect(tail)
        while tail.offset < size:
            if time.monotonic() > deadline:
                raise EvenhandError(
                    f"the last records of job {tail.job.id} do not show "
                    f"in {tail.task.journal_folder}"
                )
            time.sleep(COLLECT_SECONDS)
            self._collect(tail)

    def _stop(self, tails: Sequence[JobTail]) -> None:
        why = f"the campaign got {STOP.name}" if STOP.number else "the campaign ended first"
        deadline = time.monotonic() + END_SECONDS
        while any(not tail.job.is_over for tail in tails) and time.monotonic() < deadline:
            self._recorder.display.step("jobs end", 0, None)
            time.sleep(COLLECT_SECONDS)
        for tail in tails:
            self._collect(tail)
            tail.is_over = True
            self._close(tail, RunOutcome.INTERRUPTED, why)

    def _show(self, tails: Sequence[JobTail]) -> None:
        running = [tail for tail in tails if not tail.is_over]
        reasons = sorted({tail.job.waits_for for tail in running} - {""})
        text = f"over; some wait for {', '.join(reasons)}" if reasons else "over"
        self._recorder.display.step(text, len(tails) - len(running), len(tails))


def name_of(run_id: str) -> str:
    return f"evenhand-{run_id[:12]}"


def gather(records: Journal, run_id: str) -> None:
    """Cancel the jobs of an earlier process of the campaign, and collect what they have written."""
    cluster.cancel_by_name(name_of(run_id))
    for job_folder in sorted(
        path.parent for path in (records.folder / JOBS).glob(f"*/{journal.RECORDS}")
    ):
        offset = journal.delivered(job_folder, "")
        collected, after = journal.read(job_folder, offset)
        while after != offset:
            for record in collected:
                records.append(record)
            offset = after
            collected, after = journal.read(job_folder, offset)
        journal.mark_delivered(job_folder, offset, "")
