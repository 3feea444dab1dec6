"""A campaign on a cluster: blocks are dealt to jobs, and what these write in their journals is collected."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Sequence
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
from experiments.run.scheduler import Skip, planned_looks
from tracking import clock, journal
from tracking.errors import EvenhandError
from tracking.journal import Journal
from tracking.records import BETWEEN_WARNINGS, Record, RunClosed, RunKind, RunOpened, RunOutcome

SUBMITTED = "submitted"
COLLECT_SECONDS = 0.5
# A file system that other machines write to may show their last lines late.
SHOWN_WITHIN_SECONDS = 60.0
# What jobs that are to end are given for it.
END_SECONDS = 60.0


@dataclass
class JobTail:
    """A job's journal as far as it has been collected.

    open: runs that have not ended. ended: how each cell did at last; extracted: each extraction, by framework.
    """

    job: SubmittedJob
    offset: int = 0
    block: int = 0
    open: dict[str, RunOpened] = field(default_factory=dict)
    ended: dict[str, RunOutcome] = field(default_factory=dict)
    extracted: dict[str, RunOutcome] = field(default_factory=dict)
    node: str = ""
    is_over: bool = False

    @property
    def task(self) -> SlurmTask:
        task: SlurmTask = self.job.task
        return task

    def has_left(self, block: int) -> bool:
        """Return whether the job is over, or has gone on to a later block."""
        return self.is_over or self.block > block

    def collect(self) -> list[Record]:
        """Return what the job has written since."""
        if not (self.task.own / journal.RECORDS).exists():
            return []
        records, self.offset = journal.read(self.task.own, self.offset)
        return records

    def note(self, record: Record) -> RunOpened | None:
        """Note where the job stands, and return the run that the record ends, if any."""
        if isinstance(record, RunOpened):
            self.open[record.run] = record
            self.block = int(record.tags.get("block", 0))
            self.node = record.tags.get("slurm.nodes") or record.tags.get("slurm.node", "")
        if not isinstance(record, RunClosed) or not (opened := self.open.pop(record.run, None)):
            return None
        outcome, tags = RunOutcome(record.outcome), opened.tags
        if tags.get("kind") == RunKind.EXTRACTION:
            self.extracted[tags["framework"]] = outcome
        else:
            self.ended[tags.get("cell", "")] = outcome
        return opened


class Slurm:
    """An array of jobs with a whole node each, to which the blocks are dealt."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign, self._recorder, self._schedule = (
            campaign,
            campaign.recorder,
            campaign.schedule,
        )
        self._settings = campaign.settings
        self._folder = campaign.recorder.folder.resolve() / JOBS
        self._node = ""

    def extract(self, jobs: Sequence[Job]) -> list[bool]:
        """See `Backend`."""
        if not jobs:
            return []
        (tail,) = self._submit([self._task(before=tuple(jobs))])
        for _ in self._while_running([tail]):
            pass
        return [tail.extracted.get(job.framework) == RunOutcome.OK for job in jobs]

    def blocks(self, blocks: Sequence[Sequence[Cell]]) -> Generator[BlockResult]:
        """See `Backend`. What is to be judged before there are more blocks is submitted by itself."""
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
        for _ in self._while_running(tails):
            while waiting:
                number = waiting[0][0].block
                tail = tail_of.get(number)
                if tail and not tail.has_left(number):
                    break
                yield self._block_result(waiting.pop(0), tail)

    def _block_result(self, block: Sequence[Cell], tail: JobTail | None) -> BlockResult:
        number = block[0].block
        if not tail:
            return BlockResult(number, ran_now=False, ok=True)
        counts, is_done = self._schedule.counts, self._schedule.is_done
        return BlockResult(
            number, True, all(is_done([cell]) or counts(tail.ended.get(cell.key)) for cell in block)
        )

    # ---- jobs

    def _task(
        self, blocks: tuple[tuple[Cell, ...], ...] = (), before: tuple[Job, ...] = ()
    ) -> SlurmTask:
        """Return a job's part of the campaign, with how its cells did in earlier launches."""
        own = self._folder / uuid.uuid4().hex[:8]
        numbers = {block[0].block for block in blocks}
        results = {
            key: end
            for key, end in self._campaign.results.items()
            if int(key.split("-")[1]) in numbers
        }
        return SlurmTask(
            self._recorder.folder.resolve(), own, self._campaign.prepared, blocks, before, results
        )

    def _submit(self, tasks: Sequence[SlurmTask]) -> list[JobTail]:
        """Submit an array. A campaign that has the nodes of one job keeps them."""
        if not tasks:
            return []
        stays = self._settings.nodes == self._settings.nodes_of_a_job
        more: dict[str, Any] = {"nodelist": self._node} if self._node and stays else {}
        name = name_of(self._recorder.run_id)
        return [
            JobTail(job)
            for job in cluster.submit(self._settings, self._folder / SUBMITTED, name, tasks, **more)
        ]

    def _while_running(self, tails: Sequence[JobTail]) -> Generator[None]:
        """Collect again and again until every job is over; left before that, or on a signal, jobs are ended first."""
        self._recorder.display.begin("jobs")
        try:
            while running := [tail for tail in tails if not tail.is_over]:
                for tail in running:
                    self._collect(tail)
                    if tail.job.is_over:
                        self._end(tail)
                self._show(tails)
                yield
                if STOP.number:
                    break
                time.sleep(COLLECT_SECONDS)
            else:
                yield
        finally:
            self._stop([tail for tail in tails if not tail.is_over])
        self._recorder.check_stop()

    def _collect(self, tail: JobTail) -> None:
        """Copy to the campaign's journal. Killed in between, the next process takes some twice, which changes nothing."""
        before = tail.offset
        for record in tail.collect():
            if isinstance(record, RunOpened):
                self._warn(record)
            self._recorder.write(record)
            if (opened := tail.note(record)) and isinstance(record, RunClosed):
                seconds = (record.time_ms - opened.time_ms) / 1_000
                why = f" ({record.reason})" if record.reason else ""
                is_good = record.outcome in (RunOutcome.OK, RunOutcome.PRUNED)
                text = f"{opened.name}: {record.outcome}{why}, {seconds:.0f} s, {tail.node}"
                self._recorder.display.finish(text, good=is_good)
        if tail.offset != before:
            journal.mark_delivered(tail.task.own, tail.offset, "")
            self._node = tail.node or self._node

    def _end(self, tail: JobTail) -> None:
        """Take in that a job is over: what it has left open ends with the reason, and so does what it did not come to."""
        try:
            self._collect_all(tail, tail.job.result())
            outcome, reason = (
                RunOutcome.FAILED,
                f"job {tail.job.id} ended without a record of this cell",
            )
        except EvenhandError as error:
            self._collect(tail)
            outcome = RunOutcome.INTERRUPTED if tail.job.state == "CANCELLED" else RunOutcome.FAILED
            reason = self._recorder.full_disk or str(error)
        tail.is_over = True
        self._close(tail, outcome, reason)
        if not STOP.number:
            for cell in (cell for block in tail.task.blocks for cell in block):
                if cell.key not in tail.ended and not self._schedule.is_done([cell]):
                    tail.ended[cell.key] = outcome
                    task = self._campaign.task(cell, self._schedule.treatments[cell.treatment])
                    cell_run.leave_out(
                        self._recorder, self._campaign.prepared, task, Skip(outcome, reason)
                    )

    def _close(self, tail: JobTail, outcome: RunOutcome, reason: str) -> None:
        for run, opened in list(tail.open.items()):
            closed = RunClosed(run, clock.now_ms(), outcome, reason[:1_000])
            self._recorder.write(closed)
            tail.note(closed)
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
        """End jobs, and wait until they have written why."""
        why = f"the campaign got {STOP.name}" if STOP.number else "the campaign ended first"
        cluster.cancel([tail.job for tail in tails])
        deadline = time.monotonic() + END_SECONDS
        while any(not tail.job.is_over for tail in tails) and time.monotonic() < deadline:
            self._recorder.display.step("jobs end", 0, None)
            time.sleep(COLLECT_SECONDS)
        for tail in tails:
            self._collect(tail)
            tail.is_over = True
            self._close(tail, RunOutcome.INTERRUPTED, why)

    def _warn(self, opened: RunOpened) -> None:
        """Show once what a node warns of."""
        lines = filter(None, opened.tags.get("warnings", "").split(BETWEEN_WARNINGS))
        self._recorder.warn([line for line in lines if line not in self._recorder.warnings])

    def _show(self, tails: Sequence[JobTail]) -> None:
        left = [tail for tail in tails if not tail.is_over]
        reasons = {why for tail in left if (why := tail.job.waits_for)}
        text = f"over; some wait for {', '.join(sorted(reasons))}" if reasons else "over"
        self._recorder.display.step(text, len(tails) - len(left), len(tails))


def name_of(run_id: str) -> str:
    """Return the name of a campaign's jobs in the queue."""
    return f"evenhand-{run_id[:12]}"


def gather(records: Journal, run_id: str) -> None:
    """Collect what jobs have written since their campaign's process ended; those that still run end first."""
    cluster.cancel_by_name(name_of(run_id))
    for own in sorted(path.parent for path in (records.folder / JOBS).glob(f"*/{journal.RECORDS}")):
        offset = journal.delivered(own, "")
        while True:
            found, after = journal.read(own, offset)
            if after == offset:
                break
            for record in found:
                records.append(record)
            offset = after
        journal.mark_delivered(own, offset, "")
