"""Cells on this machine: one by one, or in turns, where one works while all others wait."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields, replace
from time import monotonic

import numpy as np

from experiments.config import devices
from experiments.contract import AnyCell, Job
from experiments.planning.design import Cell
from experiments.run import cell_run
from experiments.run.backends import Backend, BlockResult
from experiments.run.campaign import Campaign
from experiments.run.cell_process import POLL_SECONDS, CellProcess
from experiments.run.cell_run import CellRun, CellTask
from experiments.run.scheduler import CellResult, Step
from tracking import clock, plain
from tracking.records import Artifact, RunClosed, RunOutcome

FILE = "turns.csv"
TURN_STEPS = 5  # fewest steps or requests of a turn


class Sequential:
    """Blocks in their order, and their cells one by one."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._recorder, self._prepared = campaign.recorder, campaign.prepared

    def extract(self, jobs: Sequence[Job]) -> list[bool]:
        return [cell_run.extract(self._recorder, self._prepared, job) for job in jobs]

    def blocks(self, blocks: Sequence[Sequence[Cell]]) -> Generator[BlockResult]:
        schedule = self._campaign.schedule
        for block in blocks:
            ran_now = not schedule.is_done(block)
            results = [self._run(step) for step in schedule.steps(block)]
            yield BlockResult(block[0].block, ran_now, all(results))

    def _run(self, step: Step) -> bool:
        recorder, prepared = self._recorder, self._prepared
        tasks = [
            self._campaign.task(cell, treatment, step.repeats) for cell, treatment in step.cells
        ]
        if step.unplanned:
            recorder.display.expect_more(len(tasks), step.unplanned)
        if step.skip:
            cell_run.leave_out(recorder, prepared, tasks[0], step.skip)
            return True
        merged = [task.treatment.merged(prepared.settings) for task in tasks]
        cooled = recorder.cool_down(tasks[0].name, max(map(devices.cool_down_seconds, merged)))
        tasks = [replace(task, tags={**task.tags, **cooled}) for task in tasks]
        results = self._measure(tasks)
        pairs, note = zip(step.cells, results, strict=True), self._campaign.schedule.note
        are_done = [note(*cell, result) for cell, result in pairs]
        return all(are_done)

    def _measure(self, tasks: Sequence[CellTask]) -> list[CellResult]:
        return [cell_run.measure(self._recorder, self._prepared, task) for task in tasks]


class Interleaved(Sequential):
    """Blocks in their order; the cells of a group take turns, and all succeed or none does."""

    def _measure(self, tasks: Sequence[CellTask]) -> list[CellResult]:
        recorder, settings = self._recorder, self._prepared.settings
        block, order = tasks[0].block, int(tasks[0].tags["order_in_block"])
        rng = np.random.default_rng([settings.seed, 2, block, order])
        group = uuid.uuid4().hex[:8]
        names = [task.treatment.name for task in tasks]
        recorder.begin(f"block {block}: {', '.join(names)}")
        tasks = [replace(task, tags={**task.tags, "turns": group}) for task in tasks]
        runs = [CellRun(recorder, self._prepared, task, in_turns=True) for task in tasks]
        cells = [run.process for run in runs]
        sensors = {run.spec.run: run.sensor_seconds for run in runs}
        turns = Turns(cells, rng, TURN_STEPS, recorder.why_stop)
        trouble = ""
        with ExitStack() as running, recorder.sparing():
            for cell in cells:
                running.enter_context(cell)
            try:
                turns.play(lambda cell: cell.start(sensors[cell.spec.run]))
            except OSError as error:
                trouble = f": {error}"
        ends = []
        for run in runs:
            if closed := run.process.end():
                ends.append(run.explain(closed))
            else:
                reason = f"the cell was not started{trouble}"
                ends.append(RunClosed(run.spec.run, clock.now_ms(), RunOutcome.FAILED, reason))
        ends = end_together(ends, names, cells.index(turns.failed) if turns.failed else None)
        for cell, turns_of_cell in zip(cells, turns.taken, strict=True):
            if turns_of_cell:
                self._keep_turns(cell.spec, turns_of_cell)
        results = [run.close(end) for run, end in zip(runs, ends, strict=True)]
        recorder.settle()
        return results

    def _keep_turns(self, spec: AnyCell, turns: Sequence[Turn]) -> None:
        rows = [[field.name for field in fields(Turn)], *map(astuple, turns)]
        try:
            (spec.path / FILE).write_text(plain.as_csv(rows), encoding="utf-8")
        except OSError as error:  # a full disk ends the cell by other records
            self._recorder.full_disk = self._recorder.full_disk or str(error)
        else:
            self._recorder.write(Artifact(spec.run, f"{spec.folder}/{FILE}"))


@dataclass(frozen=True)
class Turn:
    """Turn of one cell.

    Attributes:
        round: 0 is the start of its process.
        place: In the round, from 0.
        phase: 0 before the first that is timed.
        steps: None if the process ended.
        seconds: Of work, by its own clock.
    """

    round: int
    place: int
    phase: int
    steps: int | None
    began_ms: int
    seconds: float


class Turns:
    """Rounds, in a random order each, until every cell has ended or one fails.

    From the start of its process to its first timed phase a cell works beside the others, and
    after the last. At each timed phase it waits for them. All cells of a round then take the same
    number of steps: so many that the quickest has a turn that is long enough.

    Args:
        why_stop: Called again and again; an answer that is not empty ends the rounds.

    Attributes:
        taken: The turns of each cell.
        failed: The first cell that failed.
    """

    def __init__(
        self,
        cells: Sequence[CellProcess],
        rng: np.random.Generator,
        least_steps: int,
        why_stop: Callable[[], str],
    ) -> None:
        self._cells, self._rng, self._least, self._why_stop = cells, rng, least_steps, why_stop
        self._steps: dict[int, int] = {}
        self.taken: list[list[Turn]] = [[] for _ in cells]
        self.failed: CellProcess | None = None

    def play(self, start: Callable[[CellProcess], None]) -> None:
        """Play all rounds.

        Args:
            start: Starts a cell's process.

        Raises:
            OSError: If a process cannot be started.
        """
        number, groups = 0, [list(range(len(self._cells)))]
        while groups:
            for place, group in enumerate(groups):
                self._work(group, number, place, start)
                if self._is_over:
                    return
            number += 1
            groups = self._next_groups()

    @property
    def _is_over(self) -> bool:
        self.failed = self.failed or next((cell for cell in self._cells if not cell.ok), None)
        return bool(self.failed or self._why_stop())

    def _next_groups(self) -> list[list[int]]:
        """Return the cells that wait in the earliest phase that any of them waits in.

        Those of a group work side by side.
        """
        reports = {index: cell.turn_report for index, cell in enumerate(self._cells) if cell.open}
        waiting = {index: report for index, report in reports.items() if report}
        first = min((report.phase for report in waiting.values()), default=0)
        members = [index for index, report in waiting.items() if report.phase == first]
        if not all(waiting[index].timed for index in members):
            return [members]
        return [[members[chosen]] for chosen in self._rng.permutation(len(members)).tolist()]

    def _work(
        self, group: Sequence[int], number: int, place: int, start: Callable[[CellProcess], None]
    ) -> None:
        """Let cells work until each passes the token or ends; the others may be killed meanwhile.

        Args:
            place: In the round, of the first of the group.
        """
        working, began_ms, began = dict[int, int](), clock.now_ms(), monotonic()
        for index in group:
            cell, working[index] = self._cells[index], 0
            if not number:
                start(cell)
            if report := cell.turn_report:
                working[index], cell.turn_report = report.phase, None
                cell.child.resume()
                cell.child.send(json.dumps({"steps": self._steps.get(report.phase, self._least)}))
        while working and not self._is_over:
            wait = POLL_SECONDS / len(working)
            for index, cell in enumerate(self._cells):
                if cell.open:
                    cell.poll(wait if index in working else 0.0)
            for index, phase in list(working.items()):
                cell = self._cells[index]
                if cell.open and not cell.turn_report:
                    continue
                steps, seconds = None, monotonic() - began
                if report := cell.turn_report:
                    cell.child.suspend()  # while it waits it must not spin, nor read ahead
                    steps, seconds = report.steps, report.seconds
                    self._steps[phase] = max(self._steps.get(phase, self._least), steps)
                turn = Turn(number, place + group.index(index), phase, steps, began_ms, seconds)
                self.taken[index].append(turn)
                del working[index]


def end_together(
    ends: Sequence[RunClosed], names: Sequence[str], failed: int | None
) -> list[RunClosed]:
    """Return the ends of all cells of a group: if one failed, the block is incomplete and all do.

    Args:
        ends: Of each cell.
        names: Of their treatments.
        failed: The first that failed, if any did by itself.
    """
    bad = [index for index, end in enumerate(ends) if end.outcome != RunOutcome.OK]
    if not bad:
        return list(ends)
    first = bad[0] if failed is None else failed
    outcome, reason = RunOutcome(ends[first].outcome), ends[first].reason
    if outcome == RunOutcome.INTERRUPTED:
        return [replace(end, outcome=outcome, reason=reason) for end in ends]
    reasons = [f"took turns with {names[first]}, which failed: {reason}"] * len(ends)
    reasons[first] = reason
    return [
        replace(end, outcome=RunOutcome.FAILED, reason=text)
        for end, text in zip(ends, reasons, strict=True)
    ]


def local_backend(campaign: Campaign) -> Backend:
    """Return the backend of this machine, or of the node of a job."""
    return (Interleaved if campaign.settings.pairing == "interleaved" else Sequential)(campaign)
