"""Clock of records: the system's time at the start of the process, plus the time that has passed.

It never goes back. If the system's clock is set while cells run, a cell could end before it began.
"""

from __future__ import annotations

import time

# Tolerance of clocks that NTP slews: seconds, and a share of the time that has passed.
SLACK_SECONDS = 2.0
SLACK_SHARE = 1e-3


def _passed() -> float:
    """Return the seconds since the machine started, sleep included; the same in all processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """Clock of this process. `origin`: the system's time when the machine started."""

    def __init__(self) -> None:
        self._began = _passed()
        self.origin = time.time() - self._began
        self._reported = 0.0

    def not_before(self, seconds: float) -> None:
        """Continue from the last moment of an earlier process, if it is in the future.

        Args:
            seconds: That moment, in seconds since 1970.
        """
        self.origin += max(0.0, seconds - self.now())

    def now(self) -> float:
        return self.origin + _passed()

    def set_back(self) -> float:
        """Return the seconds by which the system's clock was set back since the last call.

        Negative if it was set forward; 0 for a slow drift.
        """
        behind = self.now() - time.time()
        moved = behind - self._reported
        if abs(moved) <= SLACK_SECONDS + SLACK_SHARE * (_passed() - self._began):
            return 0.0
        self._reported = behind
        return moved


CLOCK = Clock()


def now() -> float:
    """Return the time of this process's clock.

    Returns:
        Seconds since 1970 that no correction of the system's clock moves.
    """
    return CLOCK.now()


def now_ms() -> int:
    return int(now() * 1_000)
