"""Warm-up of a GPU by time, until its steps take equally long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import takewhile

import numpy as np

from experiments.contract import AnyCell, Output
from models.contract import Framework
from models.devices import CPU
from tracking.records import Tags

SHORTEST_SECONDS, LIMIT_SECONDS = 1.0, 30.0
JUDGE_SECONDS = 0.1  # between two judgements, which cost time
# Steps in each half of those that are compared, and the drift between halves that is none.
LEAST_STEPS, DRIFT = 3, 0.01
# Standard error of a median of normal values over their median absolute deviation, times √n.
OF_MEDIAN = 1.2533 * 1.4826
# Reasons why a warm-up ended.
STEADY, LIMIT, STEPS = "steady", "limit", "steps"
NOT_OVER = "phase ended"


class WarmUp:
    """Steps or requests that do not count, until they take equally long.

    A GPU's clock rises under load: its steps are slower at first. The time begins after the first
    one, which compiles and tries algorithms while the GPU may idle.

    Args:
        least: Fewest steps.
        most: Most steps.
        now: Returns the time in seconds.

    Attributes:
        steps: Steps so far.
        seconds: Their duration after the first.
        end_reason: Reason why it is over, or an empty text.
    """

    def __init__(
        self, least: int, most: float = math.inf, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.steps, self.seconds, self.end_reason = 0, 0.0, ""
        self._least, self._most, self._now = max(1, least), most, now
        self._began = self._judged = 0.0
        self._times: list[tuple[float, float]] = []

    @property
    def is_over(self) -> bool:
        return bool(self.end_reason)

    def step(self, seconds: float) -> None:
        """Count a step that took these seconds, off the clock; decide whether it was the last."""
        if self.is_over:
            return
        now = self._now()
        self.steps += 1
        if self.steps == 1:
            self._began = now
        else:
            self._times.append((now, seconds))
        self.seconds = now - self._began
        self.end_reason = self._reason_to_end()

    def _reason_to_end(self) -> str:
        if self.steps < self._least:
            return ""
        if self.steps >= self._most:
            return STEPS
        if self.seconds >= max(SHORTEST_SECONDS, self._judged + JUDGE_SECONDS):
            self._judged = self.seconds
            if is_steady(self._latest()):
                return STEADY
        return LIMIT if self.seconds >= LIMIT_SECONDS else ""

    def _latest(self) -> list[float]:
        """Return the seconds of the steps of the last half, a second or a few steps at least.

        The longer a warm-up lasts, the slower the drift that it still sees.
        """
        since = self._times[-1][0] - max(SHORTEST_SECONDS, self.seconds / 2) if self._times else 0.0
        recent = sum(1 for _ in takewhile(lambda step: step[0] > since, reversed(self._times)))
        return [seconds for _, seconds in self._times[-max(recent, 2 * LEAST_STEPS) :]]

    def record(self, spec: AnyCell, phase: str, output: Output) -> None:
        prefix = f"check/{phase}_warmup"
        output.metrics({f"{prefix}_steps": self.steps, f"{prefix}_seconds": self.seconds})
        output.record(Tags(spec.run, {f"warmup.{phase}": self.end_reason or NOT_OVER}))


def is_steady(seconds: Sequence[float]) -> bool:
    """Return whether the medians of both halves differ by no more than 1 %, or than by chance."""
    half = len(seconds) // 2
    if half < LEAST_STEPS:
        return False
    earlier, later = np.array(seconds[:half]), np.array(seconds[half:])
    medians = np.median(earlier), np.median(later)
    deviations = [
        np.median(np.abs(values - median)) / math.sqrt(len(values))
        for values, median in zip((earlier, later), medians, strict=True)
    ]
    by_chance = 2 * OF_MEDIAN * float(np.hypot(*deviations))
    return bool(abs(medians[1] - medians[0]) <= max(DRIFT * float(min(medians)), by_chance))


def of_gpu(
    framework: Framework,
    output: Output,
    least: int,
    most: float = math.inf,
) -> WarmUp | None:
    """Return the warm-up of a phase on a GPU; None on the CPU.

    Time in which the cell waits for its turn does not pass.
    """
    if framework.device == CPU:
        return None
    return WarmUp(least, most, now=output.working_seconds)
