"""Step clock, raw values, and the metrics that summarise them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, SupportsFloat

import numpy as np

if TYPE_CHECKING:
    from experiments.config.settings import ClockSettings
    from models.contract import Batch

# Requests that a distribution-free 95 % interval of a percentile needs: max(q, 1 - q)^n <= 0.025.
EARNED_AT = {50: 6, 95: 72, 99: 368}
WINDOWS = "train_windows"
WINDOW_STEPS = 10  # of a window where `window_steps` leaves it open
DELAYED = "its way of training waits for the device inside of a window: its steps do not run freely"


@dataclass(frozen=True)
class PhaseValues:
    """Raw times of one phase, in order: seconds and examples of each step or window of steps.

    Attributes:
        warmup: Steps after each of `starts` that are not summarised.
        starts: Steps at which a process began; a resumed training has several.
        end_times: Clock time at which each step ended, in seconds since 1970; empty if unknown.
        warmups: Warm-up of each start, where they differ.
    """

    phase: str
    seconds: tuple[float, ...]
    examples: tuple[int, ...]
    warmup: int
    starts: tuple[int, ...] = (0,)
    end_times: tuple[float, ...] = ()
    warmups: tuple[int, ...] = ()

    @property
    def is_warmup(self) -> tuple[bool, ...]:
        counts = self.warmups or (self.warmup,) * len(self.starts)
        pairs = list(zip(self.starts, counts, strict=True))
        warm = {step for start, count in pairs for step in range(start, start + count)}
        return tuple(step in warm for step in range(len(self.seconds)))

    @property
    def steady(self) -> tuple[list[float], list[int]]:
        """Seconds and examples of the steps after the warm-up."""
        steps = [step for step, is_warm in enumerate(self.is_warmup) if not is_warm]
        return [self.seconds[step] for step in steps], [self.examples[step] for step in steps]


@dataclass(frozen=True)
class Pace:
    """Readings of the clock: after each of the `first` steps, and from then on after windows.

    A window has `window_steps`; after each, `between` more steps are timed one by one.
    """

    window_steps: int = 1
    first: float = math.inf
    between: int = 0


EVERY_STEP = Pace()


def pace(settings: ClockSettings, first: int, *, windows_first: bool = True) -> Pace:
    """Return the pace that the settings `timing` and `window_steps` ask for.

    Args:
        settings: Settings of the cell.
        first: Steps that are timed one by one in any case.
        windows_first: Whether windows come first where they alternate with single steps. Steps
            after a validation are slower, so epochs alternate this.
    """
    kind, steps = settings.timing, settings.window_steps or WINDOW_STEPS
    if kind == "step":
        return EVERY_STEP
    if kind == "free":
        return Pace(steps, first)
    return Pace(steps, first if windows_first else first + steps, between=steps)


class Window(NamedTuple):
    """Steps between two readings of the clock, in which nothing waited for the device."""

    steps: int
    seconds: float
    end_time: float


class Stopwatch:
    """Clock of steps, or of windows of them, between `begin` and `end`.

    The caller has synchronised the device.

    Args:
        on_step: Gets the steps so far, the last loss and the seconds of a step, off the clock.
        delay: Share by which every timed step is made longer, for a control.
        pace: Readings of the clock.
        turn: Gets the steps of every step or window, and may wait, off the clock.

    Attributes:
        telling_seconds: Time spent in `on_step` and `turn`.
        seconds, end_times: Of the steps that were timed one by one; `windows` has all others.
    """

    def __init__(
        self,
        on_step: Callable[[int, float, float], None],
        delay: float = 0.0,
        pace: Pace = EVERY_STEP,
        turn: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._on_step, self._delay, self._pace, self._turn = on_step, delay, pace, turn
        self._single_steps = pace.first
        self._began = 0.0
        self.telling_seconds = 0.0
        self.seconds: list[float] = []
        self.end_times: list[float] = []
        self.windows: list[Window] = []
        self.losses: list[float] = []

    @property
    def window_steps(self) -> int:
        """Steps of the next window."""
        return 1 if self._single_steps else self._pace.window_steps

    @property
    def held_up(self) -> bool:
        """True if a window but the last was cut short by something that waited for the device."""
        return any(window.steps < self._pace.window_steps for window in self.windows[:-1])

    def begin(self) -> None:
        self._began = time.perf_counter()

    def end(self, *losses: SupportsFloat) -> None:
        last = float(losses[-1])
        inject_delay(self._began, self._delay)
        seconds, end_time = time.perf_counter() - self._began, time.time()
        if self._single_steps:
            self._single_steps -= 1
            self.seconds.append(seconds)
            self.end_times.append(end_time)
        else:
            self._single_steps = self._pace.between
            self.windows.append(Window(len(losses), seconds, end_time))
        reporting = time.perf_counter()
        self.losses += [*map(float, losses[:-1]), last]
        self._on_step(len(self.losses), last, seconds / len(losses))
        self._turn(len(losses))
        self.telling_seconds += time.perf_counter() - reporting

    def go_on_with(self, pace: Pace) -> None:
        """Take the clock at another pace from the next step on, such as after a warm-up."""
        self._pace, self._single_steps = pace, pace.first


class TimedIterator:
    """Batches, with the seconds that making or loading them took."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = batches
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Batch]:
        began = time.perf_counter()
        for batch in self._batches:
            self.seconds += time.perf_counter() - began
            yield batch
            began = time.perf_counter()


def inject_delay(began: float, share: float) -> None:
    """Wait for a share of the time since `began`, awake: a sleep would let the processor rest."""
    if share:
        until = time.perf_counter() + share * (time.perf_counter() - began)
        while time.perf_counter() < until:
            pass


def percentiles(seconds: Sequence[float]) -> dict[int, float]:
    """Return the percentiles for which there are enough values.

    They are median-unbiased (Hyndman & Fan 1996, definition 8).
    """
    earned = [q for q, least in EARNED_AT.items() if len(seconds) >= least]
    return {q: float(np.quantile(seconds, q / 100, method="median_unbiased")) for q in earned}


def estimate_warmup(seconds: Sequence[float]) -> int:
    """Return the number of first steps to leave out, at most half.

    The marginal standard error rule (White, 1997): as many as narrow the standard error of the
    mean of the rest most, after the first. Single late outliers are capped, or the warm-up would
    reach up to them.
    """
    half = len(seconds) // 2
    if half < 2:
        return min(1, len(seconds))
    values = np.minimum(seconds, np.quantile(seconds[half:], 0.9))
    errors = [float(values[step:].var()) / (len(values) - step) for step in range(1, half + 1)]
    return 1 + int(np.argmin(errors))


def of_windows(windows: Sequence[Window], examples_a_step: int, warmup: int = 0) -> PhaseValues:
    """Return the raw values of windows, a row for each."""
    return PhaseValues(
        WINDOWS,
        tuple(window.seconds for window in windows),
        tuple(window.steps * examples_a_step for window in windows),
        warmup,
        end_times=tuple(window.end_time for window in windows),
    )


def summarise_training(values: PhaseValues, total_seconds: float) -> dict[str, float]:
    """Return the first step, median and p95 of the rest, and throughput as total over total."""
    metrics = {"train/first_step_seconds": values.seconds[0], "train/total_seconds": total_seconds}
    seconds, _ = values.steady
    if seconds:
        metrics["train/step_seconds"] = float(np.median(seconds))
    metrics |= {
        f"train/step_seconds_p{q}": value for q, value in percentiles(seconds).items() if q == 95
    }
    return metrics | _throughput(values, "train/examples_per_second")


def summarise_windows(metrics: Mapping[str, float], windows: PhaseValues) -> dict[str, float]:
    """Return the metrics of a training that has windows, whose throughput replaces that of steps.

    A window has no median step and no percentile: they are of the steps that were timed one by
    one.
    """
    summary = {
        name: value for name, value in metrics.items() if name != "train/examples_per_second"
    }
    if "train/examples_per_second" in metrics:
        summary["train/stepped_examples_per_second"] = metrics["train/examples_per_second"]
    return summary | _throughput(windows, "train/examples_per_second")


def _throughput(values: PhaseValues, name: str) -> dict[str, float]:
    seconds, examples = values.steady
    return {name: sum(examples) / sum(seconds)} if seconds else {}


def summarise_generation(whole: PhaseValues, first: PhaseValues, tokens: int) -> dict[str, float]:
    """Return the time to the first token of an answer, and of each token after it.

    The second is left out where noise is longer than the tokens.

    Args:
        whole: Requests for an answer.
        first: Requests for its first token alone.
        tokens: Of an answer.
    """
    (all_seconds, _), (first_seconds, _) = whole.steady, first.steady
    to_first = float(np.median(first_seconds))
    metrics = {"inference/first_token_seconds": to_first}
    if (after := float(np.median(all_seconds)) - to_first) > 0:
        metrics["inference/seconds_per_token"] = after / (tokens - 1)
    return metrics


def summarise_requests(values: PhaseValues, prefix: str = "inference") -> dict[str, float]:
    """Return the first call, and of the rest percentiles and throughput as total over total."""
    seconds, _ = values.steady
    metrics = {f"{prefix}/latency_seconds_p{q}": value for q, value in percentiles(seconds).items()}
    metrics[f"{prefix}/first_call_seconds"] = values.seconds[0]
    return metrics | _throughput(values, f"{prefix}/examples_per_second")
