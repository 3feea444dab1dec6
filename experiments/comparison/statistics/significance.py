"""Tests, multiplicity, and summaries of strata.

No p is 0 or NaN: if there is nothing to test it is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats
from statsmodels.stats.meta_analysis import combine_effects

from experiments.comparison.statistics.estimates import (
    Floats,
    is_constant,
    numbers,
    t_quantile,
)

SMALLEST_P = 1e-300
ALPHA = 0.05
PREDICTION_DRAWS = 2_000


def _p(value: float) -> float:
    """Return a p-value inside (0, 1]: an underflow is not certainty."""
    return min(1.0, max(SMALLEST_P, float(value)))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Return Holm's adjusted p-values; None stays None and does not count."""
    # statsmodels' multipletests collects garbage on each call, 50 ms each
    tested = np.array([p for p in ps if p is not None])
    order = np.argsort(tested)
    adjusted = np.empty_like(tested)
    adjusted[order] = np.minimum(
        1.0, np.maximum.accumulate(tested[order] * np.arange(len(tested), 0, -1))
    )
    remaining = iter(adjusted.tolist())
    return [None if p is None else next(remaining) for p in ps]


@dataclass(frozen=True)
class Combined:
    """Random-effects summary of strata, on the scale of the estimates (logarithms for ratios).

    Attributes:
        value: Mean over strata, with its interval `low`, `high`.
        prediction_low, prediction_high: Value in one more stratum; None below three strata.
        tau: SD of the true values between strata.
        i_squared_percent: Share of the estimates' variance that is between strata. None, like
            `q_p`, if a stratum's variance is 0.
        q_p: Cochran's test that there is no variance between strata.
    """

    value: float
    low: float
    high: float
    prediction_low: float | None
    prediction_high: float | None
    tau: float
    i_squared_percent: float | None
    q_p: float | None
    n: int
    standard_error: float

    @property
    def p(self) -> float | None:
        """Two-sided t test that the mean over strata is 0; None without spread."""
        if not self.standard_error:
            return None
        return _p(2 * special.stdtr(self.n - 1, -abs(self.value) / self.standard_error))

    def tost_p(self, bound: float) -> float | None:
        """Test that the mean over strata lies inside ±bound; None without spread."""
        if not self.standard_error:
            return None
        return _p(special.stdtr(self.n - 1, (abs(self.value) - bound) / self.standard_error))


def random_effects(values: ArrayLike, variances: ArrayLike, confidence: float = 0.95) -> Combined:
    """Summarise estimates of at least two strata, with the variances of these estimates.

    Variance between strata by Paule & Mandel 1982; interval by Hartung and Knapp with k - 1 degrees
    of freedom, never narrower than the plain one (Röver, Knapp & Friede 2015). If a stratum does
    not vary, its weight would be infinite: strata then count alike.
    """
    estimates, spread = numbers(values), numbers(variances)
    n = len(estimates)
    value, share, q_p = float(estimates.mean()), None, None
    if spread.min() == 0:
        is_same = is_constant(estimates, float(np.abs(estimates).max()))
        error = 0.0 if is_same else float(stats.sem(estimates))
        tau = math.sqrt(max(0.0, n * error**2 - float(spread.mean())))
        # the textbook's, for strata of equal weight
        reach = float(estimates.std(ddof=1)) * math.sqrt(1 + 1 / n)
        reach *= t_quantile((1 + confidence) / 2, n - 1)
        ahead = value - reach, value + reach
    else:
        # tau² doubles at most with each step, hence many; a finer `atol` would return 0
        with np.errstate(divide="ignore"):  # its I² of strata that agree entirely; ours is 0
            result = combine_effects(estimates - value, spread, method_re="iterated", maxiter=2_000)
        error = math.sqrt(max(float(result.var_hksj_re), float(result.var_eff_w_re)))
        # of strata that agree entirely, rounding leaves a little less than 0
        q = max(0.0, float(result.q))
        share = 100 * max(0.0, 1 - result.df / q) if q > 0 else 0.0
        q_p = _p(special.chdtrc(result.df, q))
        tau = math.sqrt(float(result.tau2))
        before, after = prediction_interval(estimates - value, spread, confidence)
        ahead = value + before, value + after
        value += float(result.mean_effect_re)
    half = t_quantile((1 + confidence) / 2, n - 1) * error
    low, high = value - half, value + half
    # one more stratum lies no nearer than their mean
    next_low, next_high = (min(ahead[0], low), max(ahead[1], high)) if n > 2 else (None, None)
    return Combined(value, low, high, next_low, next_high, tau, share, q_p, n, error)


def prediction_interval(
    values: Floats, variances: Floats, confidence: float = 0.95
) -> tuple[float, float]:
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
    chances, rng = (np.arange(PREDICTION_DRAWS) + 0.5) / PREDICTION_DRAWS, np.random.default_rng(0)
    return (
        special.chdtri(df, 1 - chances),
        special.ndtri(rng.permutation(chances)),
        special.stdtrit(df, rng.permutation(chances)),
    )


def paper_procedure(
    a_steps: ArrayLike, b_steps: ArrayLike
) -> tuple[int, list[list[float]], float] | None:
    """Apply the procedure of the published studies to the steps of one process a side.

    It is shown next to the verdict, never as the verdict: steps are not independent, and
    Kolmogorov-Smirnov with an estimated mean and deviation is no valid test of normality.

    Returns:
        The steps of a side, p of both sides by KS, Lilliefors and Shapiro, and p of the paired
        Wilcoxon test; None of constant sides, or below four steps.
    """
    a, b = numbers(a_steps), numbers(b_steps)
    n = min(len(a), len(b))
    sides = (a[:n], b[:n])
    if n < 4 or any(is_constant(side, float(np.abs(side).max())) for side in sides):
        return None
    from statsmodels.stats.diagnostic import lilliefors  # slow to import, and few ask for it

    normality: list[Callable[[Floats], float]] = [
        lambda side: stats.kstest(side, "norm", args=(side.mean(), side.std(ddof=1))).pvalue,
        lambda side: lilliefors(side)[1],
        lambda side: stats.shapiro(side).pvalue,
    ]
    paired = _p(stats.wilcoxon(*sides).pvalue) if (sides[0] != sides[1]).any() else 1.0
    return n, [[_p(test(side)) for side in sides] for test in normality], paired
