"""The parent's side of the token: of the cells of a block that live at the same time, one works, and all others wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields, replace

import numpy as np

from experiments.run.listening import LISTEN_SECONDS, Listening
from tracking import clock, spreadsheet
from tracking.records import RunClosed, RunOutcome

FILE = "turns.csv"


@dataclass(frozen=True)
class Turn:
    """What one cell did with the token. round: 0 is the start of its process. place: in the round, from 0.

    phase: 0 before the first that is timed. steps: None where the process ended. seconds: of work, by its own clock.
    """

    round: int
    place: int
    phase: int
    steps: int | None
    began_ms: int
    seconds: float


class Turns:
    """Rounds, in a random order each, until every cell has ended or one fails.

    A cell works from the start of its process to its first timed phase. There it waits for the others, as at every later
    phase. All cells of a round take equally many steps: so many that the quickest has a turn that is long enough.

    stopped: why nothing may go on, if so; asked again and again. taken: the turns of each cell. failed: the first that did.
    """

    def __init__(
        self, cells: Sequence[Listening], rng: np.random.Generator, least_steps: int, stopped: Callable[[], str]
    ) -> None:
        self._cells, self._rng, self._least, self._stopped = cells, rng, least_steps, stopped
        self._steps: dict[int, int] = {}
        self.taken: list[list[Turn]] = [[] for _ in cells]
        self.failed: Listening | None = None

    def play(self, start: Callable[[Listening], None]) -> None:
        """start: begins a cell's process. Raises OSError where that cannot be done."""
        number, order = 0, list(range(len(self._cells)))
        while order:
            for place, at in enumerate(order):
                self._turn(at, number, place, start)
                if self._over:
                    return
            number += 1
            members = self._waiting()
            order = [members[chosen] for chosen in self._rng.permutation(len(members)).tolist()]

    @property
    def _over(self) -> bool:
        self.failed = self.failed or next((one for one in self._cells if not one.well), None)
        return bool(self.failed or self._stopped())

    def _waiting(self) -> list[int]:
        """The cells that wait in the earliest phase that any of them waits in."""
        phases = {at: one.passed.phase for at, one in enumerate(self._cells) if one.open and one.passed}
        return [at for at, phase in phases.items() if phase == min(phases.values())]

    def _turn(self, at: int, number: int, place: int, start: Callable[[Listening], None]) -> None:
        """One works until it passes the token or ends. The others are listened to as well: they may be killed."""
        one, others = self._cells[at], [other for other in self._cells if other is not self._cells[at]]
        phase, began_ms, began = 0, clock.now_ms(), time.monotonic()
        if not number:
            start(one)
        if one.passed and one.child:
            phase, one.passed = one.passed.phase, None
            one.child.go(self._steps.get(phase, self._least))
        while one.open and not one.passed and not self._over:
            one.hear(LISTEN_SECONDS)
            for other in others:
                if other.open:
                    other.hear(0.0)
        steps, seconds = None, time.monotonic() - began
        if one.passed and one.child:
            one.child.hold()
            steps, seconds = one.passed.steps, one.passed.seconds
            self._steps[phase] = max(self._steps.get(phase, self._least), steps)
        self.taken[at].append(Turn(number, place, phase, steps, began_ms, seconds))


def as_csv(turns: Sequence[Turn]) -> str:
    """A line a turn."""
    return spreadsheet.as_csv([[field.name for field in fields(Turn)], *map(astuple, turns)])


def together(endings: Sequence[RunClosed], names: Sequence[str], failed: int | None) -> list[RunClosed]:
    """All of them end well, or none does: the others have measured a block that is not whole.

    names: of their treatments. failed: the first that failed, if any did by itself.
    """
    bad = [at for at, one in enumerate(endings) if one.outcome != RunOutcome.OK]
    if not bad:
        return list(endings)
    first = bad[0] if failed is None else failed
    outcome, reason = RunOutcome(endings[first].outcome), endings[first].reason
    if outcome == RunOutcome.INTERRUPTED:
        return [replace(one, outcome=outcome, reason=reason) for one in endings]
    if outcome == RunOutcome.OUT_OF_MEMORY:  # no limit of its own was found
        reason = f"{reason} (out of memory while {len(endings)} cells were alive; with pairing=sequential each has it alone)"
    others = f"took turns with {names[first]}, which failed: {reason}"
    return [replace(one, outcome=RunOutcome.FAILED, reason=reason if at == first else others) for at, one in enumerate(endings)]
