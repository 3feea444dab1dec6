"""Where the value of one more stratum is expected, from the estimates of a few. Pure functions."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special

from experiments.comparison.statistics.estimates import Floats, t_quantile

DRAWS = 2_000


def interval(values: Floats, variances: Floats, confidence: float = 0.95) -> tuple[float, float]:
    """The interval that holds the true value of one more stratum, from estimates with their variances (all above 0).

    The variance between strata is not known from few of them, so that every value has its share that the data leave it: its
    confidence distribution, by inverting Q, which has k - 1 degrees of freedom at the true one (Viechtbauer 2007). For each,
    the mean with Hartung and Knapp's error (never less than the plain one) and the new stratum's own distance from it. As
    Nagashima, Noma & Furukawa 2019, on evenly likely instead of random values; mirrored, so that it turns with its sign.
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
    """For each variance between strata: the weighted mean, its variance, and Q."""
    weights = 1 / (variances + between[:, None])
    total = weights.sum(axis=1)
    mean = weights @ values / total
    return mean, 1 / total, (weights * (values - mean[:, None]) ** 2).sum(axis=1)


@lru_cache(maxsize=64)
def _likely(df: int) -> tuple[Floats, Floats, Floats]:
    """Evenly likely values of chi square (ascending), and in orders of their own of a normal and a t variable."""
    chances, rng = (np.arange(DRAWS) + 0.5) / DRAWS, np.random.default_rng(0)
    return (
        special.chdtri(df, 1 - chances),
        special.ndtri(rng.permutation(chances)),
        special.stdtrit(df, rng.permutation(chances)),
    )


def of_equals(values: Floats, confidence: float = 0.95) -> tuple[float, float]:
    """The same where strata count alike: the textbook's prediction interval of one more value."""
    count = len(values)
    reach = (
        t_quantile((1 + confidence) / 2, count - 1)
        * float(values.std(ddof=1))
        * math.sqrt(1 + 1 / count)
    )
    return float(values.mean()) - reach, float(values.mean()) + reach
