"""Prediction interval of the value of one more stratum."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special

from experiments.comparison.statistics.estimates import Floats, t_quantile

DRAWS = 2_000


def interval(values: Floats, variances: Floats, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of the true value of one more stratum.

    The variance between strata is not known from few of them, so each value has its share: its
    confidence distribution, by inverting Q, which has k - 1 degrees of freedom at the true one
    (Viechtbauer 2007). For each, the mean with Hartung and Knapp's error (never less than the plain
    one) and the distance of the new stratum. As Nagashima, Noma & Furukawa 2019, on equally likely
    instead of random values; mirrored, so that it turns with its sign.

    Args:
        values: Estimates of the strata.
        variances: Of these estimates, all above 0.
    """
    chance, normal, t = _likely(len(values) - 1)
    # Q falls with the variance; at the end of the grid it lies below all that is asked for
    squares = float(((values - values.mean()) ** 2).sum())
    grid = np.append(
        0.0,
        np.geomspace(1e-3 * variances.min(), max(variances.min(), 2 * squares / chance[0]), 300),
    )
    between = np.interp(-chance, -_weighted(values, variances, grid)[2], grid)
    mean, plain, q = _weighted(values, variances, between)
    error = np.sqrt(plain * np.maximum(1.0, q / (len(values) - 1)))
    apart = np.sqrt(between) * normal - error * t
    low, high = np.quantile(
        np.concatenate([mean - apart, mean + apart]), ((1 - confidence) / 2, (1 + confidence) / 2)
    )
    return float(low), float(high)


def _weighted(values: Floats, variances: Floats, between: Floats) -> tuple[Floats, Floats, Floats]:
    """Return, for each variance between strata, the weighted mean, its variance, and Q."""
    weights = 1 / (variances + between[:, None])
    total = weights.sum(axis=1)
    mean = weights @ values / total
    return mean, 1 / total, (weights * (values - mean[:, None]) ** 2).sum(axis=1)


@lru_cache(maxsize=64)
def _likely(df: int) -> tuple[Floats, Floats, Floats]:
    """Return equally likely values of chi square (ascending), and, shuffled, of normal and t."""
    chances, rng = (np.arange(DRAWS) + 0.5) / DRAWS, np.random.default_rng(0)
    return (
        special.chdtri(df, 1 - chances),
        special.ndtri(rng.permutation(chances)),
        special.stdtrit(df, rng.permutation(chances)),
    )


def equal_interval(values: Floats, confidence: float = 0.95) -> tuple[float, float]:
    """Return the textbook's prediction interval, for strata of equal weight."""
    count = len(values)
    reach = (
        t_quantile((1 + confidence) / 2, count - 1)
        * float(values.std(ddof=1))
        * math.sqrt(1 + 1 / count)
    )
    return float(values.mean()) - reach, float(values.mean()) + reach
