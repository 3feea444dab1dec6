"""The parent's side of the token: of the cells of a block that live at the same time, one works, and all others wait."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields, replace

import numpy as np

from experiments.contract import CellSpec
from experiments.planning.design import Cell
from experiments.run import cell_run
from experiments.run.backends.sequential import Sequential
from experiments.run.cell_process import POLL_SECONDS, CellProcess
from experiments.run.cell_run import CellTask
from experiments.run.scheduler import CellResult
from tracking import clock, spreadsheet
from tracking.records import Artifact, RunClosed, RunOutcome

FILE = "turns.csv"

# Fewest steps or requests of a turn.
TURN_STEPS = 5


class Interleaved(Sequential):
    """One block after the other; the cells of a group take turns, and all of them end well, or none does."""

    def _measure(self, tasks: Sequence[CellTask], first: Cell) -> list[CellResult]:
        recorder, prepared = self._recorder, self._prepared
        settings = prepared.settings
        rng = np.random.default_rng([settings.seed, 2, first.block, first.order_in_block])
        group = uuid.uuid4().hex[:8]
        tasks = [dataclasses.replace(task, tags={**task.tags, "turns": group}) for task in tasks]
        names = [task.treatment.name for task in tasks]
        recorder.begin(f"block {first.block}: {', '.join(names)}")
        cells = [cell_run.open_run(recorder, prepared, task, in_turns=True) for task in tasks]
        began = time.monotonic()
        sensors = {task.run: cell_run.sensor_seconds(settings, task.treatment) for task in tasks}
        turns = Turns(cells, rng, TURN_STEPS, recorder.why_stop)
        trouble = ""
        with (
            ExitStack() as running,
            recorder.sparing([task.treatment.merged(settings) for task in tasks]),
        ):
            for cell in cells:
                running.enter_context(cell)
            try:
                turns.play(lambda cell: cell.start(sensors[cell.spec.run]))
            except OSError as error:
                trouble = f": {error}"
        ends = []
        for task, cell in zip(tasks, cells, strict=True):
            if closed := cell.end():
                ends.append(cell_run.explain_end(recorder, prepared, task, cell, closed))
            else:
                ends.append(cell_run.failed(task.run, f"the cell was not started{trouble}"))
        ends = end_together(ends, names, cells.index(turns.failed) if turns.failed else None)
        for cell, taken in zip(cells, turns.taken, strict=True):
            if taken:
                self._keep_turns(cell.spec, taken)
        seconds = time.monotonic() - began
        closing = zip(tasks, cells, ends, strict=True)
        results = [cell_run.close_run(recorder, prepared, *cell, seconds) for cell in closing]
        recorder.settle()
        return results

    def _keep_turns(self, spec: CellSpec, taken: Sequence[Turn]) -> None:
        try:
            (spec.path / FILE).write_text(as_csv(taken), encoding="utf-8")
        except OSError as error:  # a full disk ends the cell by what else cannot be written
            self._recorder.full_disk = self._recorder.full_disk or str(error)
        else:
            self._recorder.write(Artifact(spec.run, f"{spec.folder}/{FILE}"))


@dataclass(frozen=True)
class Turn:
    """What one cell did with the token.

    round: 0 is the start of its process. place: in the round, from 0. phase: 0 before the first that
    is timed. steps: None where the process ended. seconds: of work, by its own clock.
    """

    round: int
    place: int
    phase: int
    steps: int | None
    began_ms: int
    seconds: float


class Turns:
    """Rounds, in a random order each, until every cell has ended or one fails.

    A cell works from the start of its process to its first timed phase. There it waits for the others,
    as at every later phase. All cells of a round take equally many steps: so many that the quickest has
    a turn that is long enough.

    why_stop: why nothing may go on, if so; asked again and again. taken: the turns of each cell.
    failed: the first that did.
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
        """Play all rounds. start: begins a cell's process. Raises OSError where that cannot be done."""
        number, order = 0, list(range(len(self._cells)))
        while order:
            for place, index in enumerate(order):
                self._turn(index, number, place, start)
                if self._over:
                    return
            number += 1
            members = self._waiting()
            order = [members[chosen] for chosen in self._rng.permutation(len(members)).tolist()]

    @property
    def _over(self) -> bool:
        self.failed = self.failed or next((cell for cell in self._cells if not cell.ok), None)
        return bool(self.failed or self._why_stop())

    def _waiting(self) -> list[int]:
        """Return the cells that wait in the earliest phase that any of them waits in."""
        reports = {index: cell.turn_report for index, cell in enumerate(self._cells) if cell.open}
        phases = {index: report.phase for index, report in reports.items() if report}
        return [index for index, phase in phases.items() if phase == min(phases.values())]

    def _turn(
        self, index: int, number: int, place: int, start: Callable[[CellProcess], None]
    ) -> None:
        """Let a cell work until it passes the token or ends. The others are listened to: they may be killed."""
        cell, others = (
            self._cells[index],
            [other for other in self._cells if other is not self._cells[index]],
        )
        phase, began_ms, began = 0, clock.now_ms(), time.monotonic()
        if not number:
            start(cell)
        if cell.turn_report:
            phase, cell.turn_report = cell.turn_report.phase, None
            cell.give_turn(self._steps.get(phase, self._least))
        while cell.open and not cell.turn_report and not self._over:
            cell.poll(POLL_SECONDS)
            for other in others:
                if other.open:
                    other.poll(0.0)
        steps, seconds = None, time.monotonic() - began
        if report := cell.turn_report:
            cell.suspend()
            steps, seconds = report.steps, report.seconds
            self._steps[phase] = max(self._steps.get(phase, self._least), steps)
        self.taken[index].append(Turn(number, place, phase, steps, began_ms, seconds))


def as_csv(turns: Sequence[Turn]) -> str:
    """Return a line a turn."""
    return spreadsheet.as_csv([[field.name for field in fields(Turn)], *map(astuple, turns)])


def end_together(
    ends: Sequence[RunClosed], names: Sequence[str], failed: int | None
) -> list[RunClosed]:
    """Return how all cells of a group end: well, or none does, since the others are of a block that is not whole.

    names: of their treatments. failed: the first that failed, if any did by itself.
    """
    bad = [index for index, end in enumerate(ends) if end.outcome != RunOutcome.OK]
    if not bad:
        return list(ends)
    first = bad[0] if failed is None else failed
    outcome, reason = RunOutcome(ends[first].outcome), ends[first].reason
    if outcome == RunOutcome.INTERRUPTED:
        return [replace(end, outcome=outcome, reason=reason) for end in ends]
    if outcome == RunOutcome.OUT_OF_MEMORY:  # no limit of its own was found
        reason = f"{reason} (out of memory while {len(ends)} cells were alive; with pairing=sequential each has it alone)"
    others = f"took turns with {names[first]}, which failed: {reason}"
    return [
        replace(end, outcome=RunOutcome.FAILED, reason=reason if at == first else others)
        for at, end in enumerate(ends)
    ]
