"""The step clock, raw values, and the summaries that a run is known by."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from experiments.cell.checkpoint import TrainingState
    from models.contract import Batch

# Requests a percentile needs before a distribution-free 95 % interval for it exists: max(q, 1 - q)^n <= 0.025.
EARNED_AT = {50: 6, 95: 72, 99: 368}


@dataclass(frozen=True)
class PhaseValues:
    """Raw times of one phase, in order: seconds and examples a step.

    `warmup` steps after each of `starts` (the steps at which a process began: a resumed training has several) are not summarised.
    ended: the clock time at which each step ended, in seconds since 1970; empty where it is not known.
    """

    phase: str
    seconds: tuple[float, ...]
    examples: tuple[int, ...]
    warmup: int
    starts: tuple[int, ...] = (0,)
    ended: tuple[float, ...] = ()

    @property
    def is_warmup(self) -> tuple[bool, ...]:
        return tuple(any(start <= step < start + self.warmup for start in self.starts) for step in range(len(self.seconds)))

    @property
    def steady(self) -> tuple[list[float], list[int]]:
        """Seconds and examples of the steps that count."""
        kept = [step for step, warm in enumerate(self.is_warmup) if not warm]
        return [self.seconds[step] for step in kept], [self.examples[step] for step in kept]


class Stopwatch:
    """Times steps between `begin` and `end`; the caller has synchronised the device. `on_step(steps, loss)` is not timed.

    delay: every step is made longer by this share of it, for a control that must be found. telling_seconds: what `on_step` took.
    """

    def __init__(self, on_step: Callable[[int, float], None], delay: float = 0.0) -> None:
        self._on_step = on_step
        self._delay = delay
        self._began = 0.0
        self.telling_seconds = 0.0
        self.seconds: list[float] = []
        self.ended: list[float] = []
        self.losses: list[float] = []

    def begin(self) -> None:
        self._began = time.perf_counter()

    def end(self, loss: float) -> None:
        hold_up(self._began, self._delay)
        self.seconds.append(time.perf_counter() - self._began)
        self.ended.append(time.time())
        self.losses.append(loss)
        told = time.perf_counter()
        self._on_step(len(self.seconds), loss)
        self.telling_seconds += time.perf_counter() - told


class Feed:
    """Batches, and how many seconds their making or loading took between them."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = batches
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Batch]:
        began = time.perf_counter()
        for batch in self._batches:
            self.seconds += time.perf_counter() - began
            yield batch
            began = time.perf_counter()


def hold_up(began: float, share: float) -> None:
    """Waits for this share of the time since `began`, awake: a sleep would let the processor rest."""
    if share:
        until = time.perf_counter() + share * (time.perf_counter() - began)
        while time.perf_counter() < until:
            pass


def percentiles(seconds: Sequence[float]) -> dict[int, float]:
    """The percentiles that this many values earn; median-unbiased (Hyndman & Fan 1996, definition 8)."""
    earned = [q for q, least in EARNED_AT.items() if len(seconds) >= least]
    return {q: float(np.quantile(seconds, q / 100, method="median_unbiased")) for q in earned}


def found_warmup(seconds: Sequence[float]) -> int:
    """Steps to leave out: the first, and as many as narrow the standard error of the rest's mean most, at most half.

    The marginal standard error rule (White, 1997). Single late outliers are capped, or they would count as warm-up's end.
    """
    half = len(seconds) // 2
    if half < 2:
        return min(1, len(seconds))
    values = np.minimum(seconds, np.quantile(seconds[half:], 0.9))
    errors = [float(values[left_out:].var()) / (len(values) - left_out) for left_out in range(1, half + 1)]
    return 1 + int(np.argmin(errors))


def summarise_training(values: PhaseValues, total_seconds: float) -> dict[str, float]:
    """Metrics of a training's steps: the first apart, median and p95 of the rest, throughput as total over total."""
    steady, examples = values.steady
    metrics = {"train/first_step_seconds": values.seconds[0], "train/total_seconds": total_seconds}
    if steady:
        metrics["train/step_seconds"] = float(np.median(steady))
        metrics["train/examples_per_second"] = sum(examples) / sum(steady)
        if 95 in (earned := percentiles(steady)):
            metrics["train/step_seconds_p95"] = earned[95]
    return metrics


def summarise_epochs(state: TrainingState, examples: int) -> dict[str, float]:
    """Metrics of whole epochs: the first apart, the median of the rest; validation and the wait for batches apart from both.

    examples: of an epoch. Throughput is total over total, of all epochs where there is but one, else without the first.
    """
    metrics = {"train/first_epoch_seconds": state.epoch_seconds[0], "val/total_seconds": state.validation_seconds}
    counted = state.epoch_seconds[1:] or state.epoch_seconds
    metrics["train/epoch_examples_per_second"] = len(counted) * examples / sum(counted)
    if later := state.epoch_seconds[1:]:
        metrics["train/epoch_seconds"] = float(np.median(later))
    if state.input_seconds:
        metrics["input/seconds_mean"] = state.input_seconds / len(state.seconds)
        metrics["input/share_percent"] = 100 * state.input_seconds / state.total_seconds
    return metrics


def summarise_requests(values: PhaseValues, prefix: str = "inference") -> dict[str, float]:
    """Metrics of answered requests: first call apart, earned percentiles of the rest, throughput as total over total."""
    steady, examples = values.steady
    metrics = {f"{prefix}/latency_seconds_p{q}": value for q, value in percentiles(steady).items()}
    metrics[f"{prefix}/first_call_seconds"] = values.seconds[0]
    if steady:
        metrics[f"{prefix}/examples_per_second"] = sum(examples) / sum(steady)
    return metrics
