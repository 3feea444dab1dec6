"""The time that records carry: the system's when the process began, and from there on what has passed, which never goes back.

The system's clock may be set while cells run. A cell then ended before it began, and no sensor was read while it was timed.
"""

from __future__ import annotations

import time

# What clocks that agree differ by, when they are read one after the other and slewed by NTP: seconds, and a share of what passed.
SLACK_SECONDS = 2.0
SLACK_SHARE = 1e-3


def _passed() -> float:
    """Seconds since the machine started, those in which it slept included; the same in every process."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """The clock of this process. `origin`: the system's time when the machine started, as this process has it."""

    def __init__(self) -> None:
        self._began = _passed()
        self.origin = time.time() - self._began
        self._known = 0.0

    def follow(self, origin: float) -> None:
        """Takes the clock of the process that started this one: what both record is compared."""
        self.origin = origin

    def not_before(self, seconds: float) -> None:
        """Goes on from the last moment of an earlier process, if it is still to come."""
        self.origin += max(0.0, seconds - self.now())

    def now(self) -> float:
        return self.origin + _passed()

    def set_back(self) -> float:
        """Seconds by which the system's clock was set back since the last call; negative: forward. 0 for a slow drift."""
        behind = self.now() - time.time()
        moved = behind - self._known
        if abs(moved) <= SLACK_SECONDS + SLACK_SHARE * (_passed() - self._began):
            return 0.0
        self._known = behind
        return moved


CLOCK = Clock()


def now() -> float:
    """Seconds since 1970."""
    return CLOCK.now()


def now_ms() -> int:
    return int(now() * 1_000)
