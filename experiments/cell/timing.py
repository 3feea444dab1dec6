"""The step clock, raw values, and the summaries that a run is known by."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat

import numpy as np

if TYPE_CHECKING:
    from experiments.cell.checkpoint import TrainingState
    from models.contract import Batch

# Requests a percentile needs before a distribution-free 95 % interval for it exists: max(q, 1 - q)^n <= 0.025.
EARNED_AT = {50: 6, 95: 72, 99: 368}
WINDOWS, ON_DEVICE = "train_windows", "train_on_device"
HELD_UP = "its way of training waits for the device inside of a window: its steps do not run freely"


@dataclass(frozen=True)
class PhaseValues:
    """Raw times of one phase, in order: seconds and examples a step, or a window of steps.

    `warmup` steps after each of `starts` (the steps at which a process began: a resumed training has several) are not summarised.
    ended: the clock time at which each step ended, in seconds since 1970; empty where it is not known.
    warmups: of each start, where they differ.
    """

    phase: str
    seconds: tuple[float, ...]
    examples: tuple[int, ...]
    warmup: int
    starts: tuple[int, ...] = (0,)
    ended: tuple[float, ...] = ()
    warmups: tuple[int, ...] = ()

    @property
    def is_warmup(self) -> tuple[bool, ...]:
        counts = self.warmups or (self.warmup,) * len(self.starts)
        pairs = list(zip(self.starts, counts, strict=True))
        warm = {step for start, count in pairs for step in range(start, start + count)}
        return tuple(step in warm for step in range(len(self.seconds)))

    @property
    def steady(self) -> tuple[list[float], list[int]]:
        """Seconds and examples of the steps that count."""
        kept = [step for step, warm in enumerate(self.is_warmup) if not warm]
        return [self.seconds[step] for step in kept], [self.examples[step] for step in kept]


@dataclass(frozen=True)
class Pace:
    """How often the clock is read and the device waited for: after each of the `first` steps, and from then on by windows.

    A window has `window_steps`; after each, `between` more steps are timed one by one.
    """

    window_steps: int = 1
    first: float = math.inf
    between: int = 0


EVERY_STEP = Pace()


def pace(settings: Mapping[str, Any], first: int, *, windows_first: bool = True) -> Pace:
    """As `timing` and `window_steps` say. first: steps that are timed one by one whatever they say.

    windows_first: which of the two comes first where they take turns. What follows a validation is slower: epochs change it.
    """
    kind, steps = settings["timing"], settings["window_steps"]
    if kind == "step":
        return EVERY_STEP
    if kind == "free":
        return Pace(steps, first)
    return Pace(steps, first if windows_first else first + steps, between=steps)


class Window(NamedTuple):
    """Steps between two readings of the clock, in which nothing waited for the device. ended: seconds since 1970."""

    steps: int
    seconds: float
    ended: float


class Stopwatch:
    """Times steps, or windows of them, between `begin` and `end`; the caller has synchronised the device.

    on_step: is told the steps so far, the last one's loss and the seconds a step; what it takes, `telling_seconds`, is not timed.
    turn: is told the steps of every step or window, and may wait; that is not timed either.
    delay: what is timed is made longer by this share of it, for a control that must be found.
    seconds, ended: of the steps that were timed one by one; `windows` has all others. on_device_seconds: of the steps of windows,
    by the device's own clock, where it has one.
    """

    def __init__(
        self,
        on_step: Callable[[int, float, float], None],
        delay: float = 0.0,
        pace: Pace = EVERY_STEP,
        turn: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._on_step, self._delay, self._pace, self._turn = on_step, delay, pace, turn
        self._singly = pace.first
        self._began = 0.0
        self.telling_seconds = 0.0
        self.seconds: list[float] = []
        self.ended: list[float] = []
        self.windows: list[Window] = []
        self.on_device_seconds: list[float] = []
        self.losses: list[float] = []

    @property
    def window_steps(self) -> int:
        """Of the window that comes next."""
        return 1 if self._singly else self._pace.window_steps

    @property
    def held_up(self) -> bool:
        """Whether a window but the last was cut short: the device was waited for more often than the clock asks to."""
        return any(one.steps < self._pace.window_steps for one in self.windows[:-1])

    def begin(self) -> None:
        self._began = time.perf_counter()

    def end(self, *losses: SupportsFloat) -> None:
        last = float(losses[-1])
        hold_up(self._began, self._delay)
        seconds, ended = time.perf_counter() - self._began, time.time()
        if self._singly:
            self._singly -= 1
            self.seconds.append(seconds)
            self.ended.append(ended)
        else:
            self._singly = self._pace.between
            self.windows.append(Window(len(losses), seconds, ended))
        told = time.perf_counter()
        self.losses += [*map(float, losses[:-1]), last]
        self._on_step(len(self.losses), last, seconds / len(losses))
        self._turn(len(losses))
        self.telling_seconds += time.perf_counter() - told

    def go_on_with(self, pace: Pace) -> None:
        """Take the clock at another pace from the next step on, such as after a warm-up."""
        self._pace, self._singly = pace, pace.first

    def on_device(self, seconds: Sequence[float]) -> None:
        self.on_device_seconds += seconds


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
    """The percentiles for which there are enough values; median-unbiased (Hyndman & Fan 1996, definition 8)."""
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
    errors = [
        float(values[left_out:].var()) / (len(values) - left_out) for left_out in range(1, half + 1)
    ]
    return 1 + int(np.argmin(errors))


def of_windows(windows: Sequence[Window], examples_a_step: int, warmup: int = 0) -> PhaseValues:
    """Their raw values, a row a window."""
    seconds, ended = tuple(one.seconds for one in windows), tuple(one.ended for one in windows)
    return PhaseValues(
        WINDOWS, seconds, tuple(one.steps * examples_a_step for one in windows), warmup, ended=ended
    )


def of_device(seconds: Sequence[float], examples_a_step: int, warmup: int = 0) -> PhaseValues:
    """Raw values of the steps of windows, by the device's own clock."""
    return PhaseValues(ON_DEVICE, tuple(seconds), (examples_a_step,) * len(seconds), warmup)


def summarise_training(values: PhaseValues, total_seconds: float) -> dict[str, float]:
    """Metrics of a training's steps: the first apart, median and p95 of the rest, throughput as total over total."""
    metrics = {"train/first_step_seconds": values.seconds[0], "train/total_seconds": total_seconds}
    metrics |= _of_steps(values, "train/step_seconds")
    if values.steady[0]:
        metrics["train/examples_per_second"] = _throughput(values)
    return metrics


def summarise_windows(
    metrics: Mapping[str, float], windows: PhaseValues, on_device: PhaseValues
) -> dict[str, float]:
    """The metrics of a training that has windows: the throughput is theirs, and that of its single steps stands beside it.

    A window has no median step and no percentile: they are of the steps that were timed one by one, or by the device's clock.
    """
    found = {name: value for name, value in metrics.items() if name != "train/examples_per_second"}
    if alone := metrics.get("train/examples_per_second"):
        found["train/stepped_examples_per_second"] = alone
    if windows.steady[0]:
        found["train/examples_per_second"] = _throughput(windows)
    return found | _of_steps(on_device, "train/on_device_step_seconds")


def _of_steps(values: PhaseValues, name: str) -> dict[str, float]:
    steady, _ = values.steady
    metrics = {name: float(np.median(steady))} if steady else {}
    return metrics | {f"{name}_p{q}": value for q, value in percentiles(steady).items() if q == 95}


def _throughput(values: PhaseValues) -> float:
    seconds, examples = values.steady
    return sum(examples) / sum(seconds)


def summarise_epochs(state: TrainingState, examples: int) -> dict[str, float]:
    """Metrics of whole epochs: the first apart, the median of the rest; validation and the wait for batches apart from both.

    examples: of an epoch. Throughput is total over total, of all epochs where there is but one, else without the first.
    """
    metrics = {
        "train/first_epoch_seconds": state.epoch_seconds[0],
        "val/total_seconds": state.validation_seconds,
    }
    counted = state.epoch_seconds[1:] or state.epoch_seconds
    metrics["train/epoch_examples_per_second"] = len(counted) * examples / sum(counted)
    if later := state.epoch_seconds[1:]:
        metrics["train/epoch_seconds"] = float(np.median(later))
    if state.input_seconds:
        metrics["input/seconds_mean"] = state.input_seconds / state.steps
        metrics["input/share_percent"] = 100 * state.input_seconds / state.total_seconds
    return metrics


def summarise_requests(values: PhaseValues, prefix: str = "inference") -> dict[str, float]:
    """Metrics of answered requests: the first call; of the rest, percentiles with enough samples and total over total."""
    steady, examples = values.steady
    metrics = {f"{prefix}/latency_seconds_p{q}": value for q, value in percentiles(steady).items()}
    metrics[f"{prefix}/first_call_seconds"] = values.seconds[0]
    if steady:
        metrics[f"{prefix}/examples_per_second"] = sum(examples) / sum(steady)
    return metrics
