"""Campaign on a cluster: blocks are dealt to jobs, whose journals are collected."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from experiments.config.stopping import STOP
from experiments.contract import Job
from experiments.planning.design import Cell
from experiments.run import cell_run
from experiments.run.backends import JOBS, BlockResult, cluster
from experiments.run.backends.cluster import SubmittedJob
from experiments.run.backends.slurm_task import SlurmTask
from experiments.run.campaign import Campaign
from experiments.run.journal_runs import block_of
from experiments.run.scheduler import Skip, planned_looks
from tracking import clock, journal
from tracking.errors import EvenhandError
from tracking.journal import Journal
from tracking.records import BETWEEN_WARNINGS, RunClosed, RunKind, RunOpened, RunOutcome

SUBMITTED = "submitted"
COLLECT_SECONDS = 0.5
# A file system that other machines write to may show their last lines late.
SHOWN_WITHIN_SECONDS = 60.0
# Time for cancelled jobs to end.
END_SECONDS = 60.0


@dataclass
class JobTail:
    """Job's journal as far as it has been collected.

    Attributes:
        open: Runs that have not ended.
        outcomes: Last outcome of each cell; extracted: of each extraction, by framework.
    """

    job: SubmittedJob
    offset: int = 0
    block: int = 0
    open: dict[str, RunOpened] = field(default_factory=dict)
    outcomes: dict[str, RunOutcome] = field(default_factory=dict)
    extracted: dict[str, RunOutcome] = field(default_factory=dict)
    node: str = ""
    is_over: bool = False

    @property
    def task(self) -> SlurmTask:
        task: SlurmTask = self.job.task
        return task

    def note_opened(self, record: RunOpened) -> None:
        self.open[record.run] = record
        self.block = int(record.tags.get("block", 0))
        self.node = record.tags.get("slurm.nodes") or record.tags.get("slurm.node", "")

    def note_closed(self, record: RunClosed) -> RunOpened | None:
        """Return the run that the record ends, if it is open."""
        if opened := self.open.pop(record.run, None):
            outcome, tags = RunOutcome(record.outcome), opened.tags
            if tags.get("kind") == RunKind.EXTRACTION:
                self.extracted[tags["framework"]] = outcome
            else:
                self.outcomes[tags.get("cell", "")] = outcome
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
        return [tail.extracted.get(job.framework) == RunOutcome.OK for job in jobs]

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
        """Return a job's part of the campaign, with results of its cells in earlier launches."""
        numbers = {block[0].block for block in blocks}
        results = {
            key: result
            for key, result in self._campaign.results.items()
            if block_of(key) in numbers
        }
        own = self._folder / uuid.uuid4().hex[:8]
        folder, prepared = self._recorder.folder.resolve(), self._campaign.prepared
        return SlurmTask(folder, own, prepared, blocks, before, results)

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
        own = tail.task.own
        if not (own / journal.RECORDS).exists():
            return
        before = tail.offset
        records, tail.offset = journal.read(own, before)
        for record in records:
            if isinstance(record, RunOpened):
                tail.note_opened(record)
                self._warn(record)
            self._recorder.write(record)
            if isinstance(record, RunClosed) and (opened := tail.note_closed(record)):
                seconds = (record.time_ms - opened.time_ms) / 1_000
                why = f" ({record.reason})" if record.reason else ""
                is_good = record.outcome in (RunOutcome.OK, RunOutcome.PRUNED)
                text = f"{opened.name}: {record.outcome}{why}, {seconds:.0f} s, {tail.node}"
                self._recorder.display.finish(text, good=is_good)
        if tail.offset != before:
            journal.mark_delivered(own, tail.offset, "")
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
                    f"the last records of job {tail.job.id} do not show in {tail.task.own}"
                )
            time.sleep(COLLECT_SECONDS)
            self._collect(tail)

    def _stop(self, tails: Sequence[JobTail]) -> None:
        """Wait until cancelled jobs have written why, and close their runs."""
        why = f"the campaign got {STOP.name}" if STOP.number else "the campaign ended first"
        deadline = time.monotonic() + END_SECONDS
        while any(not tail.job.is_over for tail in tails) and time.monotonic() < deadline:
            self._recorder.display.step("jobs end", 0, None)
            time.sleep(COLLECT_SECONDS)
        for tail in tails:
            self._collect(tail)
            tail.is_over = True
            self._close(tail, RunOutcome.INTERRUPTED, why)

    def _warn(self, opened: RunOpened) -> None:
        """Show a node's warnings once."""
        lines = filter(None, opened.tags.get("warnings", "").split(BETWEEN_WARNINGS))
        self._recorder.warn([line for line in lines if line not in self._recorder.warnings])

    def _show(self, tails: Sequence[JobTail]) -> None:
        running = [tail for tail in tails if not tail.is_over]
        reasons = sorted({tail.job.waits_for for tail in running} - {""})
        text = f"over; some wait for {', '.join(reasons)}" if reasons else "over"
        self._recorder.display.step(text, len(tails) - len(running), len(tails))


def name_of(run_id: str) -> str:
    """Return the name of a campaign's jobs in the queue."""
    return f"evenhand-{run_id[:12]}"


def gather(records: Journal, run_id: str) -> None:
    """Cancel the jobs of an earlier process of the campaign, and collect what they have written."""
    cluster.cancel_by_name(name_of(run_id))
    for own in sorted(path.parent for path in (records.folder / JOBS).glob(f"*/{journal.RECORDS}")):
        offset, _ = journal.delivered(own, "")
        collected, after = journal.read(own, offset)
        while after != offset:
            for record in collected:
                records.append(record)
            offset = after
            collected, after = journal.read(own, offset)
        journal.mark_delivered(own, offset, "")
