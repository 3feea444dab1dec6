"""Estimates with intervals: ratios, differences, shifts, percentiles, effect sizes.

All are of b against the baseline a: a ratio is b / a, a difference b - a, a probability P(b > a).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from tracking.errors import ErrorCode, UsageError

Floats = NDArray[np.float64]
# The width of a t interval from two values is chance, from 0 to a factor of 10^10.
MINIMUM_VALUES = 3
ROUNDING = 1e-9
# A trimmed mean drops this part of the values at each end: 1 of 8 to 15, 5 of 43, none below 8.
TRIMMED_PART = 8


@dataclass(frozen=True)
class Estimate:
    """Value with its confidence interval, whose bounds are infinite if it has too few values."""

    value: float
    low: float
    high: float


def numbers(values: ArrayLike) -> Floats:
    """Return a one-dimensional array. Raises UsageError unless all values are finite."""
    array = np.asarray(values, dtype=np.float64).ravel()
    if not np.logical_and.reduce(np.isfinite(array)):  # `all` takes twice as long for so few
        raise UsageError(
            ErrorCode.INVALID_VALUE, "values hold NaN or infinities; leave those runs out"
        )
    return array


def differences(a: ArrayLike, b: ArrayLike) -> Floats:
    """Return b - a, pair by pair."""
    return np.subtract(numbers(b), numbers(a))


def log_ratios(a: ArrayLike, b: ArrayLike) -> Floats:
    """Return log(b / a), pair by pair, of positive values."""
    return differences(np.log(a), np.log(b))


def is_constant(values: ArrayLike, scale: float = 1.0) -> bool:
    """Return whether values differ by no more than rounding.

    Args:
        values: Values, or differences of values.
        scale: Size of the numbers that the values were computed from, which their rounding follows.
    """
    return bool(np.ptp(numbers(values)) <= ROUNDING * max(abs(scale), np.finfo(float).tiny))


def kept_values(count: ArrayLike) -> Floats:
    """Return how many of so many values a trimmed mean keeps: an eighth goes at each end."""
    return np.asarray(count - 2 * (np.asarray(count) // TRIMMED_PART), dtype=float)


class Trimmed(NamedTuple):
    """Trimmed means of series, with standard errors and degrees of freedom, (…) each.

    winsorised: the series with its ends at the last values that are kept, (…, n).
    """

    centre: Floats
    error: Floats
    df: Floats
    winsorised: Floats


def trim(series: Floats) -> Trimmed:
    """Return the trimmed means of series (values last), with errors from winsorised SDs.

    Of a series with fewer distinct values than half its length, nothing is trimmed: its spread is
    in the few that differ. Source: Tukey & McLaughlin 1963.
    """
    ordered, n = np.sort(series, axis=-1), series.shape[-1]
    cut = n // TRIMMED_PART
    steps = np.diff(ordered, axis=-1) > ROUNDING * np.ptp(series, axis=-1, keepdims=True)
    is_coarse = 2 * (1 + steps.sum(axis=-1)) < n
    winsorised = np.clip(series, ordered[..., cut, None], ordered[..., n - 1 - cut, None])
    winsorised = np.where(is_coarse[..., None], series, winsorised)
    middle = ordered[..., cut : n - cut].mean(axis=-1)
    centre = np.where(is_coarse, series.mean(axis=-1), middle)
    counts = np.where(is_coarse, float(n), kept_values(n))
    spread = np.sqrt(((winsorised - winsorised.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1))
    with np.errstate(divide="ignore", invalid="ignore"):  # of a single value
        error = spread / np.sqrt(counts * (counts - 1))
    return Trimmed(centre, error, counts - 1, winsorised)


def trimmed_mean(values: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Return the trimmed mean with its t interval, which is unbounded below three values."""
    sample = numbers(values)
    centre, error, df, _ = (part.tolist() for part in trim(sample))
    if len(sample) < MINIMUM_VALUES:
        return Estimate(centre, -math.inf, math.inf)
    half = t_quantile((1 + confidence) / 2, df) * error
    return Estimate(centre, centre - half, centre + half)


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
