"""Steady state of a run's steps: changepoints (ruptures), and a guard against slow drift."""

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
# A shorter last stretch may be one more transient phase.
MINIMUM_SHARE = 0.25
MINIMUM_SEGMENT = 2
SPIKE_MEDIANS = 2
RARE_SHARE = 0.05
# Least noise, as a share of a step: smaller jumps are ignored, however quiet the clock is.
QUIETEST = 0.002
DRIFT_CONFIDENCE = 0.99
# More than 1 % of orders of five values rise, or fall, throughout: five show no slope.
MINIMUM_IN_SLOPE = 6
MAXIMUM_IN_SLOPE = 300


@dataclass(frozen=True)
class Steady:
    """Steady state of a run. Step 0, with set-up and compilation, is left out.

    Attributes:
        first_steady_step: None if there is none.
    """

    kind: SteadyKind
    first_steady_step: int | None
    reason: str


def classify(seconds: ArrayLike) -> Steady:
    """Classify a run as steady, steady after a warm-up, never steady, or too short.

    Changepoints of the medians of five steps (kernel change-point detection, Arlot et al. 2019,
    penalty 5 ln k), then the longest end of the run whose segments all lie within 2 % of the last
    one, and a guard against drift.
    """
    steps = numbers(seconds, minimum=0)[1:]
    least = STEPS_A_MEDIAN * MINIMUM_MEDIANS
    if len(steps) < least:
        reason = f"{len(steps) + 1} steps; {least + 1} are needed"
        return Steady("too few steps", None, reason)
    width = STEPS_A_MEDIAN * math.ceil(len(steps) / (STEPS_A_MEDIAN * MAXIMUM_MEDIANS))
    count = len(steps) // width
    medians = np.median(steps[: count * width].reshape(count, width), axis=1)
    if not medians.min() > 0:
        return Steady("no steady state", None, "some steps are shorter than the clock's resolution")
    segments = _segments(medians)
    start = _rest(medians, segments)
    is_line = len(segments) > 1 and _is_line(medians, segments)
    drift = (_drift(medians) if is_line else 0.0) or _drift(medians[start:])
    if drift:
        return Steady("no steady state", None, f"its steps drift by {drift:+.1f} %")
    share = 1 - start / len(medians)
    if share < MINIMUM_SHARE:
        reason = (
            f"only the last {100 * share:.0f} % of the run is within {100 * TOLERANCE:.0f} % of "
            "its last segment"
        )
        return Steady("no steady state", None, reason)
    if not start:
        reason = f"all segments are within {100 * TOLERANCE:.0f} % of the last"
        return Steady("steady", 1, reason)
    gap = 100 * (float(np.median(medians[:start])) / float(np.median(medians[start:])) - 1)
    step, direction = 1 + start * width, "slower" if gap > 0 else "faster"
    reason = f"the steps before step {step} are {abs(gap):.1f} % {direction}"
    return Steady("warm-up, then steady", step, reason)


def _segments(medians: Floats) -> list[tuple[int, int]]:
    """Return the stretches between changepoints, as (start, end)."""
    import ruptures

    # in units of the noise, so that the penalty weighs a jump against chance
    signal = (medians / _noise(medians)).reshape(-1, 1)
    detector = ruptures.KernelCPD(kernel="linear", min_size=MINIMUM_SEGMENT).fit(signal)
    ends = [int(end) for end in detector.predict(pen=_penalty(medians))]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _penalty(medians: Floats) -> float:
    return 5 * math.log(len(medians))


def _noise(medians: Floats) -> float:
    """Return the SD of the medians around their level, from differences of neighbours."""
    jumps = np.diff(medians)
    deviation = float(np.median(np.abs(jumps - np.median(jumps))))
    sd = deviation / float(stats.norm.ppf(0.75)) / math.sqrt(2)
    return max(sd, QUIETEST * abs(float(np.median(medians))), float(np.finfo(float).tiny))


def _rest(medians: Floats, segments: Sequence[tuple[int, int]]) -> int:
    """Return the begin of the longest end that stays at the last segment's level.

    A rare short excursion inside it does not end it.
    """
    levels = [float(np.median(medians[start:end])) for start, end in segments]
    first, excursions = segments[-1][0], 0
    for (start, end), level in zip(reversed(segments), reversed(levels), strict=True):
        if abs(level - levels[-1]) <= TOLERANCE * abs(levels[-1]):
            first = start
            continue
        if end - start > SPIKE_MEDIANS:
            break
        excursions += end - start
        if excursions > RARE_SHARE * (len(medians) - start):
            break
    return first


def _is_line(medians: Floats, segments: Sequence[tuple[int, int]]) -> bool:
    """Return whether a line explains the run better than jumps, which turn drift into stairs."""
    at = np.arange(len(medians))
    line = np.polynomial.Polynomial.fit(at, medians, 1)(at)
    stairs = np.concatenate(
        [np.full(end - start, medians[start:end].mean()) for start, end in segments]
    )
    costs = [float(np.sum(((medians - fit) / _noise(medians)) ** 2)) for fit in (line, stairs)]
    return costs[0] + _penalty(medians) < costs[1] + _penalty(medians) * (len(segments) - 1)


def _drift(stretch: Floats) -> float:
    """Return the change over a stretch of positive medians in percent; 0 if it is none.

    Theil-Sen's slope of logarithms: a drift is larger than the tolerance, and its 99 % interval
    leaves 0 out.
    """
    if len(stretch) < MINIMUM_IN_SLOPE:
        return 0.0
    # a part of thousands suffices, and the pairs of all would fill the memory
    count = min(len(stretch), MAXIMUM_IN_SLOPE)
    at = np.unique(np.linspace(0, len(stretch) - 1, count).astype(int))
    slope, _, low, high = stats.theilslopes(np.log(stretch[at]), at, DRIFT_CONFIDENCE)
    rise = float(slope) * len(stretch)
    is_drift = (low > 0 or high < 0) and abs(rise) > math.log1p(TOLERANCE)
    return 100 * math.expm1(rise) if is_drift else 0.0
