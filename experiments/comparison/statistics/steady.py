"""Whether the steps of a run came to rest: changepoints, and a guard against slow drift. The only importer of ruptures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from experiments.comparison.statistics.estimates import Floats, numbers

SteadyKind = Literal["steady", "warm-up, then steady", "no steady state", "too few steps"]
KINDS: tuple[SteadyKind, ...] = get_args(SteadyKind)
STEPS_A_MEDIAN = 5
MINIMUM_MEDIANS = 15
MAXIMUM_MEDIANS = 2_000
TOLERANCE = 0.02
# A last stretch shorter than this share of the run may be one more passing phase.
MINIMUM_SHARE = 0.25
MINIMUM_SEGMENT = 2
SPIKE_MEDIANS = 2
RARE_SHARE = 0.05
# Jumps that are small against this share of a step are no news, however quiet the clock is.
QUIETEST = 0.002
DRIFT_CONFIDENCE = 0.99
# Of five values in random order more than 1 % rise, or fall, throughout: no slope of so few is beyond chance.
MINIMUM_IN_SLOPE = 6
MAXIMUM_IN_SLOPE = 300


@dataclass(frozen=True)
class Steady:
    """How a run's steps went. Step 0, which pays for set-up and compilation, is always left apart.

    first_steady_step: None where there is none. drift_percent: by how much a step's seconds change over the last stretch, or
    over the whole run where all of it drifts; None where too few steps show it, or where chance explains it.
    """

    kind: SteadyKind
    first_steady_step: int | None
    drift_percent: float | None
    reason: str


def classify(seconds: ArrayLike) -> Steady:
    """A run's steps as steady, steady after a warm-up, never steady, or too few to tell.

    Changepoints of the medians of five steps (kernel change-point detection, Arlot et al. 2019, penalty 5 ln k), then the
    longest end of the run whose segments all lie within 2 % of the last one, and a guard against drift.
    """
    found = numbers(seconds, minimum=0)[1:]
    if len(found) < STEPS_A_MEDIAN * MINIMUM_MEDIANS:
        least = STEPS_A_MEDIAN * MINIMUM_MEDIANS + 1
        return Steady(
            "too few steps", None, None, f"{len(found) + 1} steps; {least} are needed to tell"
        )
    width = STEPS_A_MEDIAN * math.ceil(len(found) / (STEPS_A_MEDIAN * MAXIMUM_MEDIANS))
    count = len(found) // width
    medians = np.median(found[: count * width].reshape(count, width), axis=1)
    segments = _segments(medians)
    start = _rest(medians, segments)
    if not medians.min() > 0:
        return Steady("no steady state", None, None, "some steps took less than the clock can tell")
    slope = _slope(medians)
    if slope and slope.is_drift and len(segments) > 1 and _is_line(medians, segments):
        return _drifting(slope, "over the length of the run")
    slope = _slope(medians[start:])
    if slope and slope.is_drift:
        last = f"over its last {(len(medians) - start) * width} steps"
        return _drifting(slope, last if start else "over the length of the run")
    return _told(medians, start, 1 + start * width, slope)


def _drifting(slope: Slope, where: str) -> Steady:
    reason = f"its steps drift: {slope.percent:+.1f} % {where}"
    return Steady("no steady state", None, slope.percent, reason)


def _told(medians: Floats, start: int, step: int, slope: Slope | None) -> Steady:
    rest = medians[start:]
    drift = slope.percent if slope and (slope.is_shown or slope.low == slope.high) else None
    share = len(rest) / len(medians)
    if share < MINIMUM_SHARE:
        reason = f"the last jump of more than {TOLERANCE:.0%} leaves only the last {share:.0%} of the run"
        return Steady("no steady state", None, drift, reason)
    if not start:
        return Steady(
            "steady",
            1,
            drift,
            f"from step 1 on no stretch differs by more than {TOLERANCE:.0%} from the last",
        )
    gap = 100 * (float(np.median(medians[:start])) / float(np.median(rest)) - 1)
    reason = (
        f"the steps before step {step} are {abs(gap):.1f} % {'slower' if gap > 0 else 'faster'}"
    )
    return Steady("warm-up, then steady", step, drift, reason)


def _segments(medians: Floats) -> list[tuple[int, int]]:
    """Stretches between changepoints, as (start, end)."""
    import ruptures

    # in units of the noise, so that the penalty weighs a jump against chance and not against its unit
    signal = (medians / _noise(medians)).reshape(-1, 1)
    detector = ruptures.KernelCPD(kernel="linear", min_size=MINIMUM_SEGMENT).fit(signal)
    ends = [int(end) for end in detector.predict(pen=_penalty(medians))]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _penalty(medians: Floats) -> float:
    return 5 * math.log(len(medians))


def _noise(medians: Floats) -> float:
    """The deviation of the medians around their level, from neighbours: a jump is in one difference only."""
    jumps = np.diff(medians)
    spread = (
        float(np.median(np.abs(jumps - np.median(jumps))))
        / float(stats.norm.ppf(0.75))
        / math.sqrt(2)
    )
    return max(spread, QUIETEST * abs(float(np.median(medians))), float(np.finfo(float).tiny))


def _rest(medians: Floats, segments: Sequence[tuple[int, int]]) -> int:
    """Where the longest end begins that keeps the last segment's level; a rare short excursion inside it does not end it."""
    levels = [float(np.median(medians[start:end])) for start, end in segments]
    first, aside = segments[-1][0], 0
    for (start, end), level in zip(reversed(segments), reversed(levels), strict=True):
        if abs(level - levels[-1]) <= TOLERANCE * abs(levels[-1]):
            first = start
        elif end - start > SPIKE_MEDIANS or (aside := aside + end - start) > RARE_SHARE * (
            len(medians) - start
        ):
            break
    return first


def _is_line(medians: Floats, segments: Sequence[tuple[int, int]]) -> bool:
    """Whether one slope explains the run better than jumps do: jumps turn a drift into a staircase, whose top looks flat."""
    at = np.arange(len(medians))
    line = np.polynomial.Polynomial.fit(at, medians, 1)(at)
    stairs = np.concatenate(
        [np.full(end - start, medians[start:end].mean()) for start, end in segments]
    )
    costs = [float(np.sum(((medians - fit) / _noise(medians)) ** 2)) for fit in (line, stairs)]
    return costs[0] + _penalty(medians) < costs[1] + _penalty(medians) * (len(segments) - 1)


@dataclass(frozen=True)
class Slope:
    """Theil-Sen's slope of logarithms over a stretch of medians, as their rise from its begin to its end.

    low, high: its 99 % interval. Of logarithms, so that no fall exceeds 100 %.
    """

    rise: float
    low: float
    high: float

    @property
    def is_shown(self) -> bool:
        """Whether chance does not explain it."""
        return self.low > 0 or self.high < 0

    @property
    def is_drift(self) -> bool:
        """Whether it is shown, and larger than the tolerance."""
        return self.is_shown and abs(self.rise) > math.log1p(TOLERANCE)

    @property
    def percent(self) -> float:
        return 100 * math.expm1(self.rise)


def _slope(stretch: Floats) -> Slope | None:
    """Return the slope of a stretch of positive medians; None of fewer than six."""
    if len(stretch) < MINIMUM_IN_SLOPE:
        return None
    # some of thousands tell a slope as well, and the pairs of all would fill the memory
    at = np.unique(
        np.linspace(0, len(stretch) - 1, min(len(stretch), MAXIMUM_IN_SLOPE)).astype(int)
    )
    slope, _, low, high = stats.theilslopes(np.log(stretch[at]), at, DRIFT_CONFIDENCE)
    return Slope(*(float(one) * len(stretch) for one in (slope, low, high)))
