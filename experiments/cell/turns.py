"""The child's side of the token: it works while it has it, and waits for it at a read that blocks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TextIO

from tracking.errors import EvenhandError

# A turn is long against what others leave in the caches, and short against what slows a machine: neighbours, heat, clocks.
MIN_SECONDS = 0.2


class Turns:
    """Counts the steps of a turn, and passes the token on when there are enough. A process begins with the token.

    enabled: False never waits. say: tells the parent. token: where the parent gives it back, a line a turn.
    waited_seconds: for the token, so far.
    """

    def __init__(
        self, say: Callable[[dict[str, object]], None], token: TextIO, *, enabled: bool
    ) -> None:
        self.waited_seconds = 0.0
        self._say, self._token, self._enabled = say, token, enabled
        self._began = time.perf_counter()
        self._phase = self._steps = self._asked = 0

    def begin(self, place: int) -> None:
        """A phase begins, in which cells take turns. place: see `Output.begin`."""
        self._phase = place
        if self._enabled:
            self._pass()

    def step(self, count: int = 1) -> None:
        """So many steps, or requests, are over, and the device has nothing to do."""
        self._steps += count
        if (
            self._enabled
            and self._steps >= self._asked
            and time.perf_counter() - self._began >= MIN_SECONDS
        ):
            self._pass()

    def _pass(self) -> None:
        passed = time.perf_counter()
        self._say(
            {"turn": {"phase": self._phase, "steps": self._steps, "seconds": passed - self._began}}
        )
        line = self._token.readline()
        if not line:
            raise EvenhandError("the campaign gave no further turn")
        self._began = time.perf_counter()
        self.waited_seconds += self._began - passed
        self._steps, self._asked = 0, int(json.loads(line)["steps"])
