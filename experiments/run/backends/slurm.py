"""Campaign on a cluster: blocks are dealt to jobs, whose journals are collected."""

from __future__ import annotations

import itertools
import shutil
import sys
import time
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.config import devices
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import STOP, Interrupted
from experiments.contract import Job
from experiments.planning.design import Cell
from experiments.run import journal_runs, machine_state
from experiments.run.backends import JOBS, SUBMITTED, BlockResult, cluster
from experiments.run.backends.cluster import SubmittedJob
from experiments.run.backends.local import local_backend
from experiments.run.campaign import Campaign
from experiments.run.cell_run import checkpoint_of, record_script_results_of_job
from experiments.run.journal_runs import block_of
from experiments.run.prepared import PreparedCampaign
from experiments.run.recorder import Recorder, shown_and_details
from experiments.run.scheduler import CellResult, planned_looks
from tracking import clock, journal, provenance
from tracking.errors import ErrorCode, EvenhandError
from tracking.journal import Journal
from tracking.records import (
    BETWEEN_WARNINGS,
    Metrics,
    Record,
    RunClosed,
    RunKind,
    RunOpened,
    RunOutcome,
)
from tracking.sensors import load
from tracking.store import Store

COLLECT_SECONDS = 0.5
# A file system that other machines write to may show their last lines late.
SHOWN_WITHIN_SECONDS = 60.0
# Time for cancelled jobs to end.
END_SECONDS = 60.0
REQUEUED = "its job was requeued: its time was over, its node failed, or another took its place"


@dataclass
class SlurmTask:
    """Work of a job; after it was requeued, it goes on with what is missing.

    Attributes:
        campaign: Folder of the campaign.
        journal_folder: Of the job, which the campaign's process collects.
        before: Jobs of `Prepared.before`, which run in this order ahead of the blocks.
        results: Of cells of these blocks in earlier launches, by key.
        warm_nodes: Nodes on which the jobs that cells do not need have run before.
    """

    campaign: Path
    journal_folder: Path
    prepared: PreparedCampaign
    blocks: tuple[tuple[Cell, ...], ...] = ()
    before: tuple[Job, ...] = ()
    results: Mapping[str, CellResult] = field(default_factory=dict)
    warm_nodes: frozenset[str] = frozenset()

    def run(self, display: Display) -> int:
        """Run the task. Return the bytes of its journal."""
        records = Journal(self.journal_folder)
        journal_runs.close_open_runs(records, REQUEUED)
        campaign = Campaign(self.prepared, records, display, part_of=self.campaign)
        recorder = campaign.recorder
        try:
            prepare_node(recorder, self.prepared.settings)
            backend = local_backend(campaign)
            with recorder.signals():
                campaign.schedule.recall(self._results())
                backend.extract(self._missing_before())
                for _ in backend.blocks(self.blocks):
                    pass
        except Interrupted:  # no result: the campaign's process asks Slurm for the reason
            recorder.leave()
            sys.exit(128 + STOP.number)
        if lost := len(records.waiting()):
            raise EvenhandError(
                ErrorCode.UNWRITABLE, f"{lost} records not written: {recorder.full_disk}"
            )
        recorder.leave()
        return records.size

    def _missing_before(self) -> Sequence[Job]:
        """Return the jobs ahead of the blocks, without warm-ups that this node has had."""
        node = cluster.here()["slurm.node"]
        if node in self.warm_nodes:
            return [job for job in self.before if job.is_needed]
        finished = [
            run
            for run in journal_runs.read(self.journal_folder).values()
            if run.tags.get("kind") == RunKind.WARM_UP
            and run.tags.get("slurm.node") == node
            and run.closed
            and run.closed.outcome != RunOutcome.INTERRUPTED
        ]
        return self.before[len(finished) :]

    def _results(self) -> dict[str, CellResult]:
        """Return results of cells, without blocks that another machine began: they begin anew."""
        results = {**self.results, **journal_runs.cell_results(self.journal_folder)}
        tags = [run.tags for run in journal_runs.read(self.journal_folder).values()]
        machines = [(run["cell"], run.get("machine", "")) for run in tags if "cell" in run]
        machines += [(key, result.machine) for key, result in results.items()]
        this = machine()
        elsewhere = {block_of(key) for key, name in machines if name not in ("", this)}
        for cell in itertools.chain(*self.blocks):
            if cell.block in elsewhere:
                shutil.rmtree(checkpoint_of(self.campaign, cell.key), ignore_errors=True)
        return {key: result for key, result in results.items() if block_of(key) not in elsewhere}


def prepare_node(recorder: Recorder, settings: CampaignSettings) -> None:
    recorder.nodes, recorder.place_tags = cluster.nodes(), cluster.here()
    if recorder.nodes:  # together they are the machine
        names = ",".join(node.name for node in recorder.nodes)
        recorder.place_tags |= {"slurm.nodes": names, "machine": machine()}
    recorder.called = f"job {recorder.place_tags['slurm.job']}"
    device, workers = devices.resolve_all(settings)[0], settings.workers_of_a_cell
    recorder.machine = machine_state.observe(load.take_snapshot(), device, workers)
    recorder.warnings = list(dict.fromkeys([*recorder.warnings, *recorder.machine.troubles]))


def machine() -> str:
    return provenance.fingerprint(sorted(node.name for node in cluster.nodes()))


@dataclass
class JobTail:
    """Job's journal as far as it has been collected.

    Attributes:
        open: Runs that have not ended.
        outcomes: Last outcome of each cell by key, and of each extraction by framework.
    """

    journal: Path
    offset: int = 0
    open: dict[str, RunOpened] = field(default_factory=dict)
    outcomes: dict[str, RunOutcome] = field(default_factory=dict)
    node: str = ""

    def read(self) -> Iterator[Record]:
        """Yield further records; a process that is killed before the last repeats some."""
        before = self.offset
        while (self.journal / journal.RECORDS).exists():
            records, after = journal.read(self.journal, self.offset)
            if after == self.offset:
                break
            self.offset = after
            yield from records
        if self.offset != before:
            with suppress(OSError):  # a full disk
                journal.mark_delivered(self.journal, self.offset, "")


class Slurm:
    """Array of jobs with a whole node each, to which the blocks are dealt."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign, self._recorder = campaign, campaign.recorder
        self._schedule, self._settings = campaign.schedule, campaign.settings
        self._folder = campaign.recorder.folder.resolve() / JOBS
        self._node = ""
        self._warm_ups: tuple[Job, ...] = ()
        self._warm_nodes: set[str] = set()

    def extract(self, jobs: Sequence[Job]) -> list[bool]:
        """Run the jobs whose results cells need; the others run on each node before its cells."""
        self._warm_ups = tuple(job for job in jobs if not job.is_needed)
        needed = tuple(job for job in jobs if job.is_needed)
        outcomes = self._run([self._task(before=needed)]) if needed else {}
        return [not job.is_needed or outcomes.get(job.framework) == RunOutcome.OK for job in jobs]

    def blocks(self, blocks: Sequence[Sequence[Cell]]) -> Generator[BlockResult]:
        """Run blocks as jobs; those up to the next look are submitted together."""
        looks = planned_looks(self._settings) if self._settings.until_settled else ()
        batch: list[Sequence[Cell]] = []
        for block in blocks:
            batch.append(block)
            if block[0].block in looks or block is blocks[-1]:
                yield from self._measure(batch)
                batch = []

    def _measure(self, blocks: Sequence[Sequence[Cell]]) -> list[BlockResult]:
        counts, is_done = self._schedule.counts, self._schedule.is_done
        missing = [tuple(block) for block in blocks if not is_done(block)]
        count = min(self._settings.nodes // self._settings.nodes_of_a_job, len(missing))
        tasks = [self._task(tuple(missing[start::count]), self._warm_ups) for start in range(count)]
        further = 0 if self._warm_nodes else len(self._warm_ups) * (count - 1)
        if further:
            self._recorder.display.expect_more(further, "warm-ups on the other nodes")
        outcomes = self._run(tasks)
        results = []
        for block in blocks:
            ok = all(is_done([cell]) or counts(outcomes.get(cell.key)) for cell in block)
            results.append(BlockResult(block[0].block, ran_now=tuple(block) in missing, ok=ok))
        return results

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
        warm = frozenset(self._warm_nodes)
        return SlurmTask(folder, job_folder, prepared, blocks, before, results, warm)

    def _run(self, tasks: Sequence[SlurmTask]) -> dict[str, RunOutcome]:
        """Run tasks as an array of jobs. Return the last outcome of each cell and extraction.

        A campaign that has the nodes of one job keeps them. On a signal the jobs are ended.
        """
        if not tasks:
            return {}
        is_single = self._settings.nodes == self._settings.nodes_of_a_job
        more: dict[str, Any] = {"nodelist": self._node} if self._node and is_single else {}
        folder = self._folder / SUBMITTED
        work = [cluster.Task(task.run) for task in tasks]
        jobs = cluster.submit(self._settings, folder, self._recorder.run_id, work, **more)
        tails = [(job, JobTail(task.journal_folder)) for job, task in zip(jobs, tasks, strict=True)]
        running = list(tails)
        self._recorder.display.begin("jobs")
        try:
            with closing(cluster.follow(jobs)) as rounds:
                for jobs_left in rounds:
                    for job, tail in list(running):
                        self._collect(tail)
                        if job not in jobs_left:
                            self._end(job, tail)
                            running.remove((job, tail))
                    reasons = ", ".join({job.waits_for for job in jobs_left} - {""})
                    text = f"over; some wait for {reasons}" if reasons else "over"
                    self._recorder.display.step(text, len(tails) - len(running), len(tails))
                    if STOP.number:
                        break
        finally:
            self._stop(running)
            cluster.forget_tasks(folder)
        self._recorder.check_stop()
        return {key: end for _, tail in tails for key, end in tail.outcomes.items()}

    def _collect(self, tail: JobTail) -> None:
        """Copy further records to the campaign's journal."""
        for record in tail.read():
            if isinstance(record, RunOpened):
                tags = record.tags
                tail.open[record.run] = record
                tail.node = tags.get("slurm.nodes") or tags.get("slurm.node", "")
                self._node = tail.node
                warnings = filter(None, tags.get("warnings", "").split(BETWEEN_WARNINGS))
                seen = self._recorder.warnings
                self._recorder.warn([line for line in warnings if line not in seen])
            if isinstance(record, RunClosed):
                self._close(tail, record)
            else:
                self._recorder.write(record)

    def _close(self, tail: JobTail, closed: RunClosed) -> None:
        """Write the end of a run and show it, if it is the end of a cell or extraction."""
        opened = tail.open.pop(closed.run, None)
        outcome = RunOutcome(closed.outcome)
        if opened and outcome == RunOutcome.OK:
            recorder, prepared = self._recorder, self._campaign.prepared
            record_script_results_of_job(
                prepared, opened, recorder.folder, recorder.store, recorder.write
            )
        self._recorder.write(closed)
        if not opened:
            return
        if "cell" in opened.tags:
            self._warm_nodes.add(opened.tags["slurm.node"])
        tail.outcomes[opened.tags.get("cell") or opened.tags.get("framework", "")] = outcome
        seconds = (closed.time_ms - opened.time_ms) / 1_000
        why = f" ({closed.reason})" if closed.reason else ""
        text = f"{opened.name}: {outcome}{why}, {seconds:.0f} s, {tail.node}"
        is_good = outcome in (RunOutcome.OK, RunOutcome.PRUNED)
        self._recorder.display.finish(text, good=is_good)

    def _end(self, job: SubmittedJob, tail: JobTail) -> None:
        """Collect the rest of a job that is over, and close its runs with its reason."""
        outcome = RunOutcome.FAILED
        reason = f"job {job.id} ended without a record of this cell"
        try:
            size = job.result()
            deadline = time.monotonic() + SHOWN_WITHIN_SECONDS
            while tail.offset < size:
                self._collect(tail)
                if time.monotonic() > deadline:
                    break
                time.sleep(COLLECT_SECONDS)
        except EvenhandError as error:
            self._collect(tail)
            if job.state == "CANCELLED":
                outcome = RunOutcome.INTERRUPTED
            reason = str(error)
            if not STOP.number:
                self._recorder.warn([reason])
            reason = self._recorder.full_disk or reason  # the warning may not have been written
        self._abandon(tail, outcome, reason)

    def _abandon(self, tail: JobTail, outcome: RunOutcome, reason: str) -> None:
        for run in list(tail.open):
            self._close(tail, RunClosed(run, clock.now_ms(), outcome, reason[:1_000]))

    def _stop(self, running: Sequence[tuple[SubmittedJob, JobTail]]) -> None:
        why = f"the campaign got {STOP.name}" if STOP.number else "the campaign ended first"
        deadline = time.monotonic() + END_SECONDS
        with closing(cluster.follow([job for job, _ in running])) as rounds:
            for jobs_left in rounds:
                if not jobs_left or time.monotonic() > deadline:
                    break
                self._recorder.display.step("jobs end", 0, None)
        for _, tail in running:
            self._collect(tail)
            self._abandon(tail, RunOutcome.INTERRUPTED, why)


def gather(records: Journal, prepared: PreparedCampaign) -> None:
    """Collect what cancelled jobs of an earlier process of the campaign have written."""
    store = Store()

    def write(record: Record) -> None:
        for part in shown_and_details(record) if isinstance(record, Metrics) else [record]:
            records.append(part)

    for file in sorted((records.folder / JOBS).glob(f"*/{journal.RECORDS}")):
        tail = JobTail(file.parent, journal.delivered(file.parent, ""))
        runs = journal_runs.read(file.parent)
        for record in tail.read():
            opened = runs[record.run].opened if record.run in runs else None
            if opened and isinstance(record, RunClosed) and record.outcome == RunOutcome.OK:
                record_script_results_of_job(prepared, opened, records.folder, store, write)
            records.append(record)
