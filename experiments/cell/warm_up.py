"""Warm-up of a GPU by time, until its clock and its temperature are steady."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from experiments.contract import AnyCell, Output
from models.contract import Framework
from models.devices import CPU
from tracking import nvml, sensors
from tracking.records import Tags
from tracking.sensors import Sample

# Longest warm-up, and its length where no clock can be read.
LIMIT_SECONDS, BLIND_SECONDS = 30.0, 5.0
READ_SECONDS = 0.1
# Reasons why a warm-up ended.
STEADY, LIMIT, BLIND, STEPS = "steady", "limit", "no clock", "steps"
NOT_OVER = "phase ended"


class WarmUp:
    """Steps or requests that do not count, until the GPU is steady.

    The time begins after the first one, which compiles and tries algorithms while the GPU may
    idle.

    Args:
        least: Fewest steps.
        most: Most steps.
        gpus: Keys of the GPUs.
        read: Returns readings of the GPUs.
        now: Returns the time in seconds.

    Attributes:
        steps: Steps so far.
        seconds: Their duration after the first.
        end_reason: Reason why it is over, or an empty text.
    """

    def __init__(
        self,
        least: int,
        most: float = math.inf,
        *,
        gpus: Sequence[str],
        read: Callable[[], dict[str, float]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps, self.seconds, self.end_reason = 0, 0.0, ""
        self._least, self._most = max(1, least), most
        self._gpus, self._read, self._now = gpus, read, now
        self._began = 0.0
        self._samples: list[Sample] = []

    @property
    def is_over(self) -> bool:
        return bool(self.end_reason)

    def step(self) -> None:
        """Count a step, off the clock, and decide whether it was the last."""
        if self.is_over:
            return
        now = self._now()
        self.steps += 1
        if self.steps == 1:
            self._began = now
        self.seconds = now - self._began
        if not self._samples or now - self._samples[-1].time_seconds >= READ_SECONDS:
            self._samples.append(Sample(now, self._read(), {}))
        self.end_reason = self._reason_to_end()

    def _reason_to_end(self) -> str:
        if self.steps < self._least:
            return ""
        if self.steps >= self._most:
            return STEPS
        keys = [f"system/{gpu}_clock_megahertz" for gpu in self._gpus]
        if not any(key in sample.values for key in keys for sample in self._samples):
            return BLIND if self.seconds >= BLIND_SECONDS else ""
        if sensors.is_steady(self._samples, self._gpus):
            return STEADY
        return LIMIT if self.seconds >= LIMIT_SECONDS else ""

    def record(self, spec: AnyCell, phase: str, output: Output) -> None:
        prefix = f"check/{phase}_warmup"
        output.metrics({f"{prefix}_steps": self.steps, f"{prefix}_seconds": self.seconds})
        output.record(Tags(spec.run, {f"warmup.{phase}": self.end_reason or NOT_OVER}))


def of_gpu(
    framework: Framework,
    output: Output,
    least: int,
    most: float = math.inf,
) -> WarmUp | None:
    """Return the warm-up of a phase on the first visible GPU; None on the CPU.

    Time in which the cell waits for its turn does not pass.
    """
    if framework.device == CPU:
        return None
    try:
        gpus = nvml.open_devices()
    except Exception:  # NVML has an error class for each cause; the GPU works all the same
        gpus = []

    def read() -> dict[str, float]:
        return {
            f"system/{gpu.key}_{name}": value for gpu in gpus for name, value in gpu.read().items()
        }

    keys = [gpu.key for gpu in gpus]
    return WarmUp(least, most, gpus=keys, read=read, now=output.working_seconds)
