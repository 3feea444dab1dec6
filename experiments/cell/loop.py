"""The loop over training steps: every workload clocks, counts and warms up its steps here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from experiments.cell.compiling import Compiling
from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.timing import EVERY_STEP, Pace, Stopwatch
from experiments.cell.warm_up import WarmUp
from experiments.config import memory
from experiments.contract import Output
from models.contract import Batch, Framework


def count_step(warm_up: WarmUp | None, peaks: DevicePeaks, *, is_warm: bool = True) -> bool:
    """Count a step to a GPU's warm-up, and end that of the peaks of memory once all are warm.

    Args:
        warm_up: of a GPU; None on the CPU, which counts steps.
        peaks: of the device's memory.
        is_warm: whether enough steps were made, whatever the GPU.

    Returns:
        Whether the warm-up ended with this step.
    """
    ends = False
    if warm_up and not warm_up.is_over:
        warm_up.step()
        ends = warm_up.is_over
    if is_warm and (warm_up is None or warm_up.is_over):
        peaks.end_warmup()
    return ends


class TrainingLoop:
    """The steps of one network, and what its framework compiles and faults in them.

    Attributes:
        compiling: what was compiled since the loop was made.
        page_faults: of the last `run`.
    """

    def __init__(self, framework: Framework, network: Any, optimizer: Any, output: Output) -> None:
        self._framework, self._network, self._optimizer = framework, network, optimizer
        self._output = output
        self.compiling = Compiling(framework)
        self.page_faults = 0

    def clock(
        self,
        pace: Pace,
        stepped: Callable[[int], bool],
        report: Callable[[int, float, float], object],
        *,
        is_warming: bool,
        delay: float = 0.0,
    ) -> Stopwatch:
        """Return a clock for the steps that follow.

        Args:
            pace: of the clock, but for the warm-up of a GPU, whose steps are timed one by one.
            stepped: counts a step, off the clock; returns whether the warm-up ended with it.
            report: gets the steps so far, the last one's loss and its seconds, off the clock.
            is_warming: whether a GPU has yet to warm up.
            delay: see `Stopwatch`.
        """

        def on_step(step: int, loss: float, seconds: float) -> None:
            self.compiling.stepped()
            if stepped(step):
                watch.go_on_with(pace)
            report(step, loss, seconds)

        watch = Stopwatch(on_step, delay, EVERY_STEP if is_warming else pace, self._output.turn)
        return watch

    def run(self, batches: Iterable[Batch], clock: Stopwatch) -> float:
        """Train on batches; return the seconds, without what was reported meanwhile."""
        with self.compiling.epoch():
            faults, began, reporting = (
                memory.page_faults(),
                time.perf_counter(),
                clock.telling_seconds,
            )
            self._framework.train_epoch(self._network, self._optimizer, batches, clock)
            seconds = time.perf_counter() - began - (clock.telling_seconds - reporting)
        self.page_faults = memory.page_faults() - faults
        return seconds
