"""Estimates with intervals: ratios, differences, Hodges-Lehmann shifts, percentiles, effect sizes. Pure functions of numbers.

Everything is said of b against the baseline a: a ratio is b / a, a difference b - a, a probability P(b > a).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from tracking.errors import WrongCall

Floats = NDArray[np.float64]
EXACT_PAIRS = 50
# Two values differ once: a t interval from one difference is as wide as chance makes it, from nothing to a factor of 10^10.
MINIMUM_VALUES = 3
ROUNDING = 1e-9


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval; an infinite bound says that so few values bound nothing."""

    value: float
    low: float
    high: float


def numbers(values: ArrayLike, *, minimum: int = 1) -> Floats:
    """A finite one-dimensional float array. Raises WrongCall on NaN, infinities or fewer than `least` values."""
    found = np.asarray(values, dtype=np.float64).ravel()
    if not np.logical_and.reduce(np.isfinite(found)):  # `all` takes twice as long for so few
        raise WrongCall("values hold NaN or infinities; leave those runs out")
    if len(found) < minimum:
        raise WrongCall(f"{len(found)} values where at least {minimum} are needed")
    return found


def differences(a: ArrayLike, b: ArrayLike) -> Floats:
    """b - a, pair by pair."""
    first, second = numbers(a), numbers(b)
    if len(first) != len(second):
        raise WrongCall(f"{len(first)} against {len(second)} values do not make pairs")
    return second - first


def log_ratios(a: ArrayLike, b: ArrayLike) -> Floats:
    """log(b / a), pair by pair. Raises WrongCall unless every value is positive."""
    first, second = numbers(a), numbers(b)
    if min(first.min(), second.min()) <= 0:
        raise WrongCall("a ratio needs positive values; compare the difference")
    return differences(np.log(first), np.log(second))


def is_constant(values: ArrayLike, scale: float = 1.0) -> bool:
    """Whether the values differ by no more than rounding does; `scale` is the size of what they were computed from."""
    return bool(np.ptp(numbers(values)) <= ROUNDING * max(abs(scale), np.finfo(float).tiny))


def mean(values: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Return the mean with its t interval: unbounded below three values, a single point for constant values."""
    found = numbers(values)
    middle = centre(found)
    if len(found) < MINIMUM_VALUES:
        return Estimate(middle, -math.inf, math.inf)
    half = (
        t_quantile((1 + confidence) / 2, len(found) - 1)
        * float(found.std(ddof=1))
        / math.sqrt(len(found))
    )
    return Estimate(middle, middle - half, middle + half)


def centre(values: Floats) -> float:
    """Mean without an interval, from an exact sum."""
    return math.fsum(values) / len(values)


def geometric_mean(values: Floats) -> float:
    """Of positive values."""
    return float(np.exp(centre(np.log(values))))


@lru_cache(maxsize=1024)
def t_quantile(chance: float, df: float) -> float:
    """Quantile of Student's t distribution."""
    return float(special.stdtrit(df, chance))


def exponential(estimate: Estimate) -> Estimate:
    """From logarithms back to ratios."""
    with np.errstate(over="ignore"):
        return Estimate(
            *(float(np.exp(bound)) for bound in (estimate.value, estimate.low, estimate.high))
        )


def walsh_averages(values: ArrayLike) -> Floats:
    """Sorted means of all pairs of values, each with itself included."""
    found = numbers(values)
    first, second = _couples(len(found))
    return np.sort((found[first] + found[second]) / 2)


@lru_cache(maxsize=EXACT_PAIRS)
def _couples(n: int) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    first, second = np.triu_indices(n)
    return first, second


def hodges_lehmann(values: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Median of the Walsh averages of differences, with the interval of the signed-rank test.

    The interval is exact up to 50 pairs; fewer than six bound nothing at 95 %. Source: Hollander & Wolfe, section 3.2.
    """
    n = len(numbers(values))
    if n <= EXACT_PAIRS:
        rank = _quantile_rank(
            signed_rank_distribution(tuple(range(1, n + 1))), (1 - confidence) / 2
        )
        return _between_ranks(walsh_averages(values), rank)
    rank = _normal_rank(n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24, confidence)
    ordered, count = np.sort(numbers(values)), n * (n + 1) // 2
    places = ((count + 1) // 2, count // 2 + 1, rank, count + 1 - rank)
    lower, upper, low, high = (_walsh_average(ordered, place) for place in places)
    return Estimate((lower + upper) / 2, low, high)


def _walsh_average(ordered: Floats, place: int) -> float:
    """The Walsh average at a place (1, 2, …) in their order, by bisection: all n² / 2 of them would fill the memory."""
    own, low, high = np.arange(len(ordered)), float(ordered[0]), float(ordered[-1])
    for _ in range(64):  # halves the range to less than its last bit
        middle = (low + high) / 2
        # For each value, how many from itself on give with it a mean of at most `middle`.
        below = np.maximum(
            np.searchsorted(ordered, 2 * middle - ordered, side="right") - own, 0
        ).sum()
        low, high = (middle, high) if below < place else (low, middle)
    return high


@lru_cache(maxsize=256)
def signed_rank_distribution(ranks: Sequence[int]) -> Floats:
    """P(the ranks with a positive sign sum to s), s = 0, 1, …; exact: signs are fair coins. With ties pass doubled mid-ranks."""
    chances = np.ones(1)
    for rank in ranks:
        chances = (np.append(chances, np.zeros(rank)) + np.append(np.zeros(rank), chances)) / 2
    return chances


def _quantile_rank(chances: Floats, tail: float) -> int:
    """Smallest s with P(S ≤ s) ≥ tail; the interval lies between the values of this rank from either end."""
    return int(np.searchsorted(np.cumsum(chances), tail * (1 - ROUNDING)))


def _normal_rank(centre: float, variance: float, confidence: float) -> int:
    return max(0, int(np.floor(centre - stats.norm.ppf((1 + confidence) / 2) * np.sqrt(variance))))


def _between_ranks(ordered: Floats, rank: int) -> Estimate:
    if rank == 0:
        return Estimate(float(np.median(ordered)), -math.inf, math.inf)
    return Estimate(float(np.median(ordered)), float(ordered[rank - 1]), float(ordered[-rank]))


def minimum_values(q: float, confidence: float = 0.95) -> int:
    """Values from which on a distribution-free interval of quantile q exists: p95 72, p99 368, p99.9 3,688."""
    if not 0 < q < 1:
        raise WrongCall(f"quantile {q} is not between 0 and 1")
    return math.ceil(math.log((1 - confidence) / 2) / math.log(max(q, 1 - q)) - ROUNDING)


def earned(q: float, n: int, confidence: float = 0.95) -> bool:
    """Whether n values are enough to report quantile q (0.95 is p95)."""
    return n >= minimum_values(q, confidence)


def percentile(values: ArrayLike, q: float) -> float:
    """Median-unbiased quantile (Hyndman & Fan 1996, definition 8). Raises WrongCall if there are too few values to earn it."""
    found = numbers(values)
    if not earned(q, len(found)):
        raise WrongCall(f"n too small: {len(found)} values, p{100 * q:g} needs {minimum_values(q)}")
    return float(np.quantile(found, q, method="median_unbiased"))


def a12(a: ArrayLike, b: ArrayLike) -> float:
    """P(a value of b > a value of a), ties counted half: 0.5 is no effect. Source: Vargha & Delaney 2000."""
    first, second = np.sort(numbers(a)), numbers(b)
    below, up_to = (int(np.searchsorted(first, second, side).sum()) for side in ("left", "right"))
    return (below + up_to) / (2 * len(first) * len(second))


def probability_within_blocks(shifts: ArrayLike) -> float:
    """P(b > a) of the two runs of one block, ties counted half: what the drift between blocks cannot blur, unlike A12."""
    found = numbers(shifts)
    return float((np.sign(found).mean() + 1) / 2)


def cliffs_delta(a: ArrayLike, b: ArrayLike) -> float:
    """P(b > a) - P(b < a): 0 is no effect, ±1 no overlap. Source: Cliff 1993."""
    return 2 * a12(a, b) - 1
