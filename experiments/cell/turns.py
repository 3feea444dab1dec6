"""Child's side of the token, for which a cell waits in a blocking read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TextIO

from tracking.errors import ErrorCode, EvenhandError

# Long against what other cells leave in the caches, short against changes of the machine's speed.
MIN_SECONDS = 0.2
LAST = 1_000  # place of what is not timed, behind every phase


class Turns:
    """Count of the steps of a turn, which passes the token on after enough of them.

    A process begins with the token.

    Args:
        say: Sends a message to the parent.
        token: Stream from which the parent's lines, one a turn, are read.
        enabled: False never waits.

    Attributes:
        waited_seconds: Wait for the token so far.
    """

    def __init__(
        self, say: Callable[[dict[str, object]], None], token: TextIO, *, enabled: bool
    ) -> None:
        self.waited_seconds = 0.0
        self._say, self._token, self._enabled = say, token, enabled
        self._began = time.perf_counter()
        self._phase = self._steps = self._target = 0
        self._timed = True

    def begin(self, place: int) -> None:
        """Begin a phase, in which cells take turns; place: see `Output.phase`."""
        self._phase = place
        if self._enabled:
            self._pass()

    def end(self) -> None:
        """Pass the token for the last time, to work side by side with the others."""
        self._timed = False
        self.begin(LAST)

    def step(self, count: int = 1) -> None:
        """Count steps or requests after which the device is idle."""
        self._steps += count
        seconds = time.perf_counter() - self._began
        if self._enabled and self._steps >= self._target and seconds >= MIN_SECONDS:
            self._pass()

    def _pass(self) -> None:
        passed = time.perf_counter()
        turn = {"phase": self._phase, "steps": self._steps, "seconds": passed - self._began}
        turn |= {"timed": self._timed}
        self._say({"turn": turn})
        line = self._token.readline()
        if not line:
            raise EvenhandError(ErrorCode.INTERRUPTED, "the campaign gave no further turn")
        self._began = time.perf_counter()
        self.waited_seconds += self._began - passed
        self._steps, self._target = 0, int(json.loads(line)["steps"])
