"""Tests, multiplicity, equivalence, and summaries of strata.

No p is 0 or NaN: if there is nothing to test it is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats
from statsmodels.stats.meta_analysis import combine_effects

from experiments.comparison.statistics import prediction
from experiments.comparison.statistics.estimates import (
    EXACT_PAIRS,
    ROUNDING,
    Floats,
    differences,
    is_constant,
    numbers,
    signed_rank_distribution,
    t_quantile,
)
from tracking.errors import UsageError

SMALLEST_P = 1e-300
EXACT_SIGNS = 15
ALPHA = 0.05


@dataclass(frozen=True)
class SignificanceTest:
    """Statistic of a test and its p."""

    statistic: float
    p: float


def _p(value: float) -> float:
    """Return a p-value inside (0, 1]: an underflow is not certainty."""
    return min(1.0, max(SMALLEST_P, float(value)))


def paired_t(shifts: ArrayLike) -> SignificanceTest | None:
    """Run the two-sided paired t test. None if shifts are constant or fewer than two."""
    values = numbers(shifts)
    if len(values) < 2 or is_constant(values, float(np.abs(values).max())):
        return None
    # SciPy's ttest_1samp takes fifty times as long, and a calibration needs 50,000 of these
    statistic = float(values.mean()) / (float(values.std(ddof=1)) / math.sqrt(len(values)))
    return SignificanceTest(statistic, _p(2 * special.stdtr(len(values) - 1, -abs(statistic))))


def signed_rank(shifts: ArrayLike) -> SignificanceTest:
    """Run Wilcoxon's two-sided signed-rank test; the statistic is the sum of positive ranks.

    Exact up to 50 shifts, ties included (SciPy's exact p ignores ties); zeros are left out.
    """
    values = numbers(shifts)
    values = values[values != 0]
    if len(values) == 0:
        return SignificanceTest(0.0, 1.0)
    ranks = stats.rankdata(np.abs(values))
    plus = float(ranks[values > 0].sum())
    if len(values) > EXACT_PAIRS:
        result = stats.wilcoxon(values, method="asymptotic", correction=True)
        return SignificanceTest(plus, _p(result.pvalue))
    chances = signed_rank_distribution(tuple(sorted(np.rint(2 * ranks).astype(int).tolist())))
    at = round(2 * plus)
    return SignificanceTest(plus, _p(2 * min(chances[at:].sum(), chances[: at + 1].sum())))


def permutation_p(shifts: ArrayLike) -> float | None:
    """Return Fisher's exact p of the mean over all choices of signs; None above 15 shifts.

    It assumes only that the sign of the noise is chance. Source: Fisher 1935, section 21.
    """
    values = numbers(shifts)
    if len(values) > EXACT_SIGNS:
        return None
    sums = np.abs(_signs(len(values)) @ values)
    return float((sums >= abs(values.sum()) * (1 - ROUNDING)).mean())


def sign_flip_p(shifts: Floats) -> float:
    """Return `permutation_p`, or its normal approximation above 15 differences."""
    exact = permutation_p(shifts)
    if exact is not None:
        return exact
    return _p(
        2
        * special.ndtr(
            -abs(shifts.sum()) / max(float(np.linalg.norm(shifts)), np.finfo(float).tiny)
        )
    )


@lru_cache(maxsize=EXACT_SIGNS)
def _signs(n: int) -> Floats:
    """Return the choices of n signs, a row each, without their mirror images."""
    choices = np.arange(2 ** (n - 1))[:, None] >> np.arange(n) & 1
    return np.asarray(1.0 - 2.0 * choices)


def tost_paired(shifts: ArrayLike, low: float, high: float) -> SignificanceTest | None:
    """Test that the mean shift lies inside (low, high), by two one-sided t tests."""
    values = numbers(shifts)
    if len(values) < 2 or is_constant(values, float(np.abs(values).max())):
        return None
    # statsmodels' ttost_paired takes thirty times as long
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    above, below = (float(values.mean()) - low) / error, (high - float(values.mean())) / error
    return SignificanceTest(
        min(abs(above), abs(below)), _p(special.stdtr(len(values) - 1, -min(above, below)))
    )


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


def page(table: ArrayLike) -> SignificanceTest:
    """Run Page's test that values rise along a (blocks, levels) table of at least three levels."""
    result = stats.page_trend_test(np.asarray(table, dtype=float))
    return SignificanceTest(float(result.statistic), _p(result.pvalue))


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
        return (
            _p(2 * special.stdtr(self.n - 1, -abs(self.value) / self.standard_error))
            if self.standard_error
            else None
        )

    def tost_p(self, bound: float) -> float | None:
        """Test that the mean over strata lies inside ±bound; None without spread."""
        if not self.standard_error:
            return None
        return _p(special.stdtr(self.n - 1, (abs(self.value) - bound) / self.standard_error))


def random_effects(values: ArrayLike, variances: ArrayLike, confidence: float = 0.95) -> Combined:
    """Summarise estimates of at least two strata, with the variances of these estimates.

    Variance between strata by Paule & Mandel 1982; interval by Hartung and Knapp with k - 1 degrees
    of freedom, never narrower than the plain one (Röver, Knapp & Friede 2015); prediction interval
    as in `prediction`. If a stratum does not vary, its weight would be infinite: strata then count alike.
    """
    estimates, spread = numbers(values, minimum=2), numbers(variances)
    if len(estimates) != len(spread) or spread.min() < 0:
        raise UsageError(f"{len(estimates)} estimates need as many variances, none below 0")
    if spread.min() == 0:
        error = (
            0.0
            if is_constant(estimates, float(np.abs(estimates).max()))
            else float(stats.sem(estimates))
        )
        tau = math.sqrt(max(0.0, len(estimates) * error**2 - float(spread.mean())))
        ahead = prediction.of_equals(estimates, confidence)
        return _combined(
            float(estimates.mean()), error, tau, None, None, len(estimates), confidence, ahead
        )
    # tau² doubles at most with each step, hence many; a finer `atol` would return 0
    centre = float(estimates.mean())
    with np.errstate(divide="ignore"):  # its I² of strata that agree entirely; ours is 0
        result = combine_effects(estimates - centre, spread, method_re="iterated", maxiter=2_000)
    error = math.sqrt(max(float(result.var_hksj_re), float(result.var_eff_w_re)))
    q = max(
        0.0, float(result.q)
    )  # of strata that agree entirely, rounding leaves a little less than 0
    share = 100 * max(0.0, 1 - result.df / q) if q > 0 else 0.0
    q_p = _p(special.chdtrc(result.df, q))
    tau = math.sqrt(float(result.tau2))
    low, high = prediction.interval(estimates - centre, spread, confidence)
    ahead = centre + low, centre + high
    return _combined(
        centre + float(result.mean_effect_re),
        error,
        tau,
        share,
        q_p,
        len(estimates),
        confidence,
        ahead,
    )


def _combined(
    value: float,
    error: float,
    tau: float,
    share: float | None,
    q_p: float | None,
    n: int,
    confidence: float,
    ahead: tuple[float, float],
) -> Combined:
    half = t_quantile((1 + confidence) / 2, n - 1) * error
    low, high = value - half, value + half
    # one more stratum lies no nearer than their mean
    before, after = (min(ahead[0], low), max(ahead[1], high)) if n > 2 else (None, None)
    return Combined(value, low, high, before, after, tau, share, q_p, n, error)


@dataclass(frozen=True)
class PaperProcedure:
    """Procedure of the published studies on the steps of one process a side.

    It is shown beside the verdict, never as the verdict: steps are not independent, and
    Kolmogorov-Smirnov with an estimated mean and deviation is no valid test of normality.
    """

    n_steps: int
    ks_p: tuple[float, float]
    lilliefors_p: tuple[float, float]
    shapiro_p: tuple[float, float]
    wilcoxon_p: float


def paper_procedure(a_steps: ArrayLike, b_steps: ArrayLike) -> PaperProcedure | None:
    """Run KS, Lilliefors and Shapiro on both sides, then paired Wilcoxon on steps."""
    a, b = numbers(a_steps), numbers(b_steps)
    n = min(len(a), len(b))
    sides = (a[:n], b[:n])
    if n < 4 or any(is_constant(side, float(np.abs(side).max())) for side in sides):
        return None
    from statsmodels.stats.diagnostic import lilliefors  # slow to import, and few ask for it

    ks = [
        _p(stats.kstest(side, "norm", args=(side.mean(), side.std(ddof=1))).pvalue)
        for side in sides
    ]
    corrected = [_p(lilliefors(side)[1]) for side in sides]
    shapiro = [_p(stats.shapiro(side).pvalue) for side in sides]
    return PaperProcedure(
        n,
        (ks[0], ks[1]),
        (corrected[0], corrected[1]),
        (shapiro[0], shapiro[1]),
        signed_rank(differences(*sides)).p,
    )
