"""Estimates with intervals: ratios, differences, shifts, percentiles, effect sizes.

All are of b against the baseline a: a ratio is b / a, a difference b - a, a probability P(b > a).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from tracking.errors import ErrorCode, UsageError

Floats = NDArray[np.float64]
# The width of a t interval from two values is chance, from 0 to a factor of 10^10.
MINIMUM_VALUES = 3
ROUNDING = 1e-9


@dataclass(frozen=True)
class Estimate:
    """Value with its confidence interval, whose bounds are infinite if it has too few values."""

    value: float
    low: float
    high: float


def numbers(values: ArrayLike, *, minimum: int = 1) -> Floats:
    """Return a finite one-dimensional array. Raises UsageError below `minimum` values."""
    array = np.asarray(values, dtype=np.float64).ravel()
    if not np.logical_and.reduce(np.isfinite(array)):  # `all` takes twice as long for so few
        raise UsageError(
            ErrorCode.INVALID_VALUE, "values hold NaN or infinities; leave those runs out"
        )
    if len(array) < minimum:
        text = f"{len(array)} values where at least {minimum} are needed"
        raise UsageError(ErrorCode.TOO_FEW, text)
    return array


def differences(a: ArrayLike, b: ArrayLike) -> Floats:
    """Return b - a, pair by pair."""
    first, second = numbers(a), numbers(b)
    if len(first) != len(second):
        text = f"{len(first)} against {len(second)} values do not make pairs"
        raise UsageError(ErrorCode.INVALID_VALUE, text)
    return second - first


def log_ratios(a: ArrayLike, b: ArrayLike) -> Floats:
    """Return log(b / a), pair by pair. Raises UsageError unless all values are positive."""
    first, second = numbers(a), numbers(b)
    if min(first.min(), second.min()) <= 0:
        text = "a ratio needs positive values; compare the difference"
        raise UsageError(ErrorCode.INVALID_VALUE, text)
    return differences(np.log(first), np.log(second))


def is_constant(values: ArrayLike, scale: float = 1.0) -> bool:
    """Return whether values differ by no more than rounding.

    Args:
        values: Values, or differences of values.
        scale: Size of the numbers that the values were computed from, which their rounding follows.
    """
    return bool(np.ptp(numbers(values)) <= ROUNDING * max(abs(scale), np.finfo(float).tiny))


def mean(values: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Return the mean with its t interval, which is unbounded below three values."""
    sample = numbers(values)
    middle, n = centre(sample), len(sample)
    if n < MINIMUM_VALUES:
        return Estimate(middle, -math.inf, math.inf)
    half = t_quantile((1 + confidence) / 2, n - 1) * float(sample.std(ddof=1)) / math.sqrt(n)
    return Estimate(middle, middle - half, middle + half)


def centre(values: Floats) -> float:
    """Return the mean, from an exact sum."""
    return math.fsum(values) / len(values)


def geometric_mean(values: Floats) -> float:
    return float(np.exp(centre(np.log(values))))


@lru_cache(maxsize=1024)
def t_quantile(chance: float, df: float) -> float:
    """Return a quantile of Student's t distribution.

    Args:
        chance: Probability below the quantile, 0 to 1.
        df: Degrees of freedom.
    """
    return float(special.stdtrit(df, chance))


def exponential(estimate: Estimate) -> Estimate:
    """Return the estimate of a ratio from that of its logarithm."""
    with np.errstate(over="ignore"):
        return Estimate(
            *(float(np.exp(bound)) for bound in (estimate.value, estimate.low, estimate.high))
        )


def minimum_values(q: float, confidence: float = 0.95) -> int:
    """Return the number of values from which quantile q has a distribution-free interval."""
    if not 0 < q < 1:
        raise UsageError(ErrorCode.INVALID_VALUE, f"quantile {q} is not between 0 and 1")
    return math.ceil(math.log((1 - confidence) / 2) / math.log(max(q, 1 - q)) - ROUNDING)


def a12(a: ArrayLike, b: ArrayLike) -> float:
    """Return P(b > a), ties counted half: 0.5 is no effect. Source: Vargha & Delaney 2000."""
    first, second = np.sort(numbers(a)), numbers(b)
    below, up_to = (int(np.searchsorted(first, second, side).sum()) for side in ("left", "right"))
    return (below + up_to) / (2 * len(first) * len(second))


def probability_within_blocks(shifts: ArrayLike) -> float:
    """Return P(b > a) of the runs of one block, ties counted half, free of drift.

    Args:
        shifts: Values of b against a, one a block; only their signs count.

    Returns:
        0 to 1; 0.5 is no effect.
    """
    return float((np.sign(numbers(shifts)).mean() + 1) / 2)
