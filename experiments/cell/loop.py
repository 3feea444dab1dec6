"""Loop over training steps, with what a framework compiles in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.timing import EVERY_STEP, Pace, Stopwatch, inject_delay
from experiments.cell.warm_up import WarmUp
from experiments.contract import AnyCell, Output
from models.contract import Batch, Framework
from models.frameworks import described
from tracking import clock
from tracking.records import RAN_EAGERLY, Tags

MAX_LETTERS = 160


def count_step(
    seconds: float, warm_up: WarmUp | None, peaks: DevicePeaks, *, is_warm: bool = True
) -> bool:
    """Count a step, and end the warm-up of the peaks of memory once enough steps were made.

    Args:
        seconds: Of the step.
        warm_up: Warm-up of a GPU; None on the CPU, where steps are counted.
        peaks: Peaks of the device's memory.
        is_warm: Whether enough steps were made, apart from the GPU.

    Returns:
        Whether the warm-up of the GPU ended with this step.
    """
    ends = False
    if warm_up and not warm_up.is_over:
        warm_up.step(seconds)
        ends = warm_up.is_over
    if is_warm and (warm_up is None or warm_up.is_over):
        peaks.end_warmup()
    return ends


def time_calls(
    calls: Iterable[Callable[[], Any]],
    output: Output,
    on_result: Callable[[Any, float], object],
    delay: float = 0.0,
) -> tuple[list[float], list[float]]:
    """Return the seconds of calls, and the clock time at which each ended.

    Args:
        calls: Requests or steps. Whatever making one takes is off the clock.
        output: Output of the cell, which may wait for its turn after a call.
        on_result: Gets each result and its seconds, off the clock.
        delay: Share by which every call is made longer, for a control.
    """
    seconds, end_times = list[float](), list[float]()
    for call in calls:
        began = time.perf_counter()
        result = call()
        if delay:
            inject_delay(began, delay)
        seconds.append(time.perf_counter() - began)
        end_times.append(clock.now())
        on_result(result, seconds[-1])
        output.turn()
    return seconds, end_times


class TrainingLoop:
    """Steps of one network.

    Args:
        framework: Framework of the network.
        network: Network.
        optimizer: Its optimizer.
        output: Output of the cell.
        peaks: Peaks of the device's memory.
        warm_up: Warm-up of a GPU, whose steps are timed one by one; None on the CPU.

    Attributes:
        compiling: What was compiled since the loop was made.
    """

    def __init__(
        self,
        framework: Framework,
        network: Any,
        optimizer: Any,
        output: Output,
        peaks: DevicePeaks,
        warm_up: WarmUp | None = None,
    ) -> None:
        self._framework, self._network, self._optimizer = framework, network, optimizer
        self._output, self._peaks, self._warm_up = output, peaks, warm_up
        self.compiling = Compiling(framework)

    def stopwatch(
        self,
        pace: Pace,
        report: Callable[[int, float, float], object],
        *,
        least: int = 0,
        delay: float = 0.0,
    ) -> Stopwatch:
        """Return a clock for the steps that follow.

        Args:
            pace: Pace after the warm-up of a GPU.
            report: Gets the steps so far, the last loss and its seconds, off the clock.
            least: Steps of the warm-up apart from that of a GPU.
            delay: See `Stopwatch`.
        """

        def on_step(step: int, loss: float, seconds: float) -> None:
            self.compiling.stepped()
            if count_step(seconds, self._warm_up, self._peaks, is_warm=step >= least):
                watch.go_on_with(pace)
            report(step, loss, seconds)

        is_warming = self._warm_up is not None and not self._warm_up.is_over
        watch = Stopwatch(on_step, delay, EVERY_STEP if is_warming else pace, self._output.turn)
        return watch

    def run(self, batches: Iterable[Batch], watch: Stopwatch) -> float:
        """Train on batches; return the seconds without the time for reports."""
        compiled = self._framework.compilations()
        began, reporting = time.perf_counter(), watch.telling_seconds
        self._framework.train_epoch(self._network, self._optimizer, batches, watch)
        seconds = time.perf_counter() - began - (watch.telling_seconds - reporting)
        self.compiling.in_steps += self._framework.compilations() - compiled
        return seconds


class Compiling:
    """Compilations and graph breaks since the object was made.

    Attributes:
        in_steps: Compilations in steps of training; those between epochs are no recompilations.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework, self.in_steps = framework, 0
        self._began = framework.compilations()
        self._earlier_breaks = dict(framework.graph_breaks() or {})
        self._first: int | None = None

    def stepped(self) -> None:
        """Count the compilations until the first step has ended, which are necessary."""
        if self._first is None:
            self._first = self._framework.compilations() - self._began

    def record(self, spec: AnyCell, model: str, output: Output) -> None:
        """Record metrics, and tags that the report shows next to the environment.

        Where a variant that compiles ran eagerly, as a whole or in part, the tag `ran_eagerly`
        gives the reason.
        """
        counts = {"compilations": self._framework.compilations() - self._began}
        if self._first is not None:
            counts["recompilations"] = self.in_steps - self._first
        breaks = self._framework.graph_breaks()
        new_breaks = {
            reason: count - self._earlier_breaks.get(reason, 0)
            for reason, count in (breaks or {}).items()
            if count > self._earlier_breaks.get(reason, 0)
        }
        if breaks is not None:
            counts["graph_breaks"] = sum(new_breaks.values())
        output.metrics({f"train/{name}": count for name, count in counts.items()})
        tags = {f"train.{name}": str(count) for name, count in counts.items()}
        reason = _reason_for_eager(counts["compilations"], new_breaks)
        if self._first is not None and described(spec.framework).compiles and reason:
            tags[RAN_EAGERLY] = f"{model}: {reason}"
        output.record(Tags(spec.run, tags))


def _reason_for_eager(compilations: int, breaks: dict[str, int]) -> str:
    """Return what was not compiled of a training; an empty text if all of it was."""
    if not compilations:
        return "nothing was compiled"
    if not breaks:
        return ""
    reason, count = " ".join(next(iter(breaks)).split()), sum(breaks.values())
    if len(reason) > MAX_LETTERS:
        reason = f"{reason[: MAX_LETTERS - 1]}…"
    return f"{count} graph break{'s' * (count > 1)}, first: {reason}"
