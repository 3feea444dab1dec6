"""The parent's side of a campaign on a cluster: blocks are dealt to jobs, and what these write in their journals is collected."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.comparison.statistics.sequential import batches
from experiments.config.stopping import STOP
from experiments.contract import Job
from experiments.planning.design import Cell
from experiments.run import slurm
from experiments.run.campaign import Campaign, Measured
from experiments.run.executors import JOBS
from experiments.run.runner import Ended, now_ms
from experiments.run.share import Share
from experiments.run.slurm import Sent
from tracking import journal
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
class Following:
    """A job's journal as far as it has been collected. open: runs that have not ended. ended: how each cell did at last."""

    sent: Sent
    offset: int = 0
    block: int = 0
    open: dict[str, RunOpened] = field(default_factory=dict)
    ended: dict[str, RunOutcome] = field(default_factory=dict)
    extracted: dict[str, RunOutcome] = field(default_factory=dict)
    node: str = ""
    over: bool = False

    @property
    def share(self) -> Share:
        """What the job was sent as."""
        share: Share = self.sent.work
        return share

    def collect(self) -> list[Record]:
        """What the job has written since."""
        if not (self.share.own / journal.RECORDS).exists():
            return []
        records, self.offset = journal.read(self.share.own, self.offset)
        return records

    def note(self, record: Record) -> RunOpened | None:
        """Remembers where the job stands. Returns the run that the record ends, if it ends one."""
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


class Jobs:
    """Sends a campaign's work to the cluster: an array of jobs with a whole node each, to which the blocks are dealt."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign, self._runner = campaign, campaign.runner
        self._settings = campaign.settings
        self._folder = campaign.runner.folder.resolve() / JOBS
        self._name = name_of(campaign.runner.run_id)
        self._node = ""
        self._stays = self._settings.nodes == self._settings.nodes_of_a_job

    def extract(self, jobs: Sequence[Job]) -> list[bool]:
        """See `Executor`."""
        if not jobs:
            return []
        (at_work,) = self._send([self._share(before=tuple(jobs))])
        for _ in self._while_at_work([at_work]):
            pass
        return [at_work.extracted.get(job.framework) == RunOutcome.OK for job in jobs]

    def blocks(self, blocks: Sequence[Sequence[Cell]]) -> Generator[Measured]:
        """See `Executor`. What is to be looked at before there are more blocks is sent by itself."""
        settings = self._settings
        looks = batches(settings.blocks, settings.max_blocks) if settings.until_settled else ()
        waiting: list[Sequence[Cell]] = []
        for block in blocks:
            waiting.append(block)
            if block[0].block in looks or block is blocks[-1]:
                yield from self._measured(waiting)
                waiting = []

    def _measured(self, blocks: Sequence[Sequence[Cell]]) -> Generator[Measured]:
        missing = [tuple(block) for block in blocks if not self._campaign.is_done(block)]
        count = min(self._settings.nodes // self._settings.nodes_of_a_job, len(missing))
        known = self._known()
        at_work = self._send([self._share(tuple(missing[start::count]), known=known) for start in range(count)])
        following = {block[0].block: one for one in at_work for block in one.share.blocks}
        waiting = list(blocks)
        for _ in self._while_at_work(at_work):
            while waiting and _is_over(waiting[0][0].block, following):
                yield self._came_of(waiting.pop(0), following)

    def _came_of(self, block: Sequence[Cell], following: dict[int, Following]) -> Measured:
        number = block[0].block
        if number not in following:
            return Measured(number, fresh=False, well=True)
        ended = following[number].ended
        well = all(self._campaign.is_done([cell]) or self._campaign.counts(ended.get(cell.key)) for cell in block)
        return Measured(number, fresh=True, well=well)

    # ---- jobs

    def _known(self) -> dict[int, dict[str, Ended]]:
        """How cells did in earlier launches, by block and key: a job is told of its own alone, and need not read all of them."""
        found: dict[int, dict[str, Ended]] = {}
        for key, end in self._campaign.ended.items():
            found.setdefault(int(key.split("-")[1]), {})[key] = end
        return found

    def _share(
        self,
        blocks: tuple[tuple[Cell, ...], ...] = (),
        before: tuple[Job, ...] = (),
        known: Mapping[int, Mapping[str, Ended]] | None = None,
    ) -> Share:
        own = self._folder / uuid.uuid4().hex[:8]
        ended = {key: end for block in blocks for key, end in (known or {}).get(block[0].block, {}).items()}
        return Share(self._runner.folder.resolve(), own, self._campaign.setup, self._campaign.plan, blocks, before, ended)

    def _send(self, shares: Sequence[Share]) -> list[Following]:
        """In one array; a campaign that has the nodes of one job keeps them, as far as its jobs are not at work at a time."""
        if not shares:
            return []
        more: dict[str, Any] = {"nodelist": self._node} if self._node and self._stays else {}
        sent = slurm.send(self._settings, self._folder / SUBMITTED, self._name, shares, **more)
        return [Following(one) for one in sent]

    def _while_at_work(self, at_work: Sequence[Following]) -> Generator[None]:
        """Collects again and again until every job is over; left before that, or on a signal, jobs are ended first."""
        self._runner.display.begin("jobs")
        try:
            while waiting := [one for one in at_work if not one.over]:
                for one in waiting:
                    self._collect(one)
                    if one.sent.over:
                        self._end(one)
                self._show(at_work)
                yield
                if STOP.number:
                    break
                time.sleep(COLLECT_SECONDS)
            else:
                yield
        finally:
            self._stop([one for one in at_work if not one.over])
        self._runner.check_stop()

    def _collect(self, one: Following) -> None:
        """To the campaign's journal. Killed in between, the next process takes some twice, which changes nothing."""
        before = one.offset
        for record in one.collect():
            if isinstance(record, RunOpened):
                self._warn(record)
            self._runner.write(record)
            if (opened := one.note(record)) and isinstance(record, RunClosed):
                seconds = (record.time_ms - opened.time_ms) / 1_000
                why = f" ({record.reason})" if record.reason else ""
                good = record.outcome in (RunOutcome.OK, RunOutcome.PRUNED)
                self._runner.display.finish(f"{opened.name}: {record.outcome}{why}, {seconds:.0f} s, {one.node}", good=good)
        if one.offset != before:
            remember(one.share.own, one.offset)
            self._node = one.node or self._node

    def _end(self, one: Following) -> None:
        """A job is over: what it has left open ends with the reason, and so does what it did not come to."""
        try:
            self._collect_all(one, one.sent.result())
            outcome, reason = RunOutcome.FAILED, f"job {one.sent.id} ended without a record of this cell"
        except EvenhandError as error:
            self._collect(one)
            outcome = RunOutcome.INTERRUPTED if one.sent.state == "CANCELLED" else RunOutcome.FAILED
            reason = self._runner.full_disk or str(error)
        one.over = True
        self._close(one, outcome, reason)
        if not STOP.number:
            for cell in (cell for block in one.share.blocks for cell in block):
                if cell.key not in one.ended and not self._campaign.is_done([cell]):
                    one.ended[cell.key] = outcome
                    self._campaign.leave_out(cell, outcome, reason)

    def _close(self, one: Following, outcome: RunOutcome, reason: str) -> None:
        for run, opened in list(one.open.items()):
            closed = RunClosed(run, now_ms(), outcome, reason[:1_000])
            self._runner.write(closed)
            one.note(closed)
            self._runner.display.finish(f"{opened.name}: {outcome} ({reason})", good=False)

    def _collect_all(self, one: Following, size: int) -> None:
        deadline = time.monotonic() + SHOWN_WITHIN_SECONDS
        self._collect(one)
        while one.offset < size:
            if time.monotonic() > deadline:
                raise EvenhandError(f"the last records of job {one.sent.id} do not show in {one.share.own}")
            time.sleep(COLLECT_SECONDS)
            self._collect(one)

    def _stop(self, at_work: Sequence[Following]) -> None:
        """Ends jobs, and waits until they have written what there is to say."""
        why = f"the campaign got {STOP.name}" if STOP.number else "the campaign ended first"
        slurm.cancel([one.sent for one in at_work])
        deadline = time.monotonic() + END_SECONDS
        while any(not one.sent.over for one in at_work) and time.monotonic() < deadline:
            self._runner.display.step("jobs end", 0, None)
            time.sleep(COLLECT_SECONDS)
        for one in at_work:
            self._collect(one)
            one.over = True
            self._close(one, RunOutcome.INTERRUPTED, why)

    # ---- what is told

    def _warn(self, opened: RunOpened) -> None:
        """What a node has found to say is said once."""
        told = filter(None, opened.tags.get("warnings", "").split(BETWEEN_WARNINGS))
        if new := tuple(line for line in told if line not in self._runner.warnings):
            self._runner.warn(new)

    def _show(self, at_work: Sequence[Following]) -> None:
        left = [one for one in at_work if not one.over]
        reasons = {why for one in left if (why := one.sent.waits_for)}
        told = f"over; some wait for {', '.join(sorted(reasons))}" if reasons else "over"
        self._runner.display.step(told, len(at_work) - len(left), len(at_work))


def _is_over(block: int, following: dict[int, Following]) -> bool:
    """Whether a block has ended: its job is over, or has gone on to a later one."""
    one = following.get(block)
    return one is None or one.over or one.block > block


def name_of(run_id: str) -> str:
    """What the jobs of a campaign are called in the queue."""
    return f"evenhand-{run_id[:12]}"


def remember(own: Path, offset: int) -> None:
    """So many bytes of a job's journal are in its campaign's."""
    journal.mark_delivered(own, offset, "")


def gather(records: Journal, run_id: str) -> None:
    """What jobs have written since their campaign's process ended goes to its journal; those that are still at work end first."""
    folder = records.folder / JOBS
    slurm.cancel_by_name(name_of(run_id))
    for own in sorted(path.parent for path in folder.glob(f"*/{journal.RECORDS}")):
        offset, _ = journal.delivered(own, "")
        while True:
            found, after = journal.read(own, offset)
            if after == offset:
                break
            for record in found:
                records.append(record)
            offset = after
        remember(own, offset)


__all__ = ["Jobs", "gather"]
