"""Confidence distribution of each trimmed mean, from AR(1) models whose evidence outcomes share."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import linalg, stats

from experiments.comparison.statistics import autocorrelation
from experiments.comparison.statistics.autocorrelation import COEFFICIENTS, PRIOR, SHARES

SERIES = np.random.default_rng(0).standard_normal((12, 9)) + 0.4


@pytest.mark.parametrize("n", [3, 6, 20])
def test_models_are_generalised_least_squares(n: int) -> None:
    """The same from dense matrices and, for independent blocks, from SciPy's Yuen test."""
    drawn = np.random.default_rng(n).standard_normal(n) + 2
    fits, ones, plain = autocorrelation.fit(drawn), np.ones(n), 0.0
    cut = n // 8
    shifts = np.asarray(stats.mstats.winsorize(drawn, (cut / n, cut / n)))
    yuen = stats.ttest_ind(drawn, np.zeros(n), trim=cut / n, equal_var=False)
    trimmed = stats.trim_mean(drawn, cut / n)
    error = trimmed / yuen.statistic
    for at, phi in enumerate(COEFFICIENTS):
        matrix = linalg.toeplitz(phi ** np.arange(n))
        inverse = np.linalg.inv(matrix)
        precision = ones @ inverse @ ones
        mean = ones @ inverse @ shifts / precision
        squares = (shifts - mean) @ inverse @ (shifts - mean)
        determinant = np.linalg.slogdet(matrix)[1]
        likelihood = determinant + math.log(precision) + (n - 1) * math.log(squares)
        plain = plain or likelihood
        assert fits.centre[at] == pytest.approx(trimmed + mean - shifts.mean())
        wider = math.sqrt(squares / ((n - 1) * precision)) / stats.sem(shifts)
        assert fits.error[at] == pytest.approx(error * wider)
        assert fits.log_likelihood[at] == pytest.approx(-(likelihood - plain) / 2)
    assert fits.df == pytest.approx(yuen.df) == n - 2 * cut - 1


def test_weights_come_from_all_outcomes() -> None:
    """The same from sums written out, over shares and coefficients."""
    likelihood = np.exp(autocorrelation.fit(SERIES).log_likelihood)
    weights = autocorrelation.posterior(np.log(likelihood))
    for outcome in range(len(SERIES)):
        expected = np.zeros(len(COEFFICIENTS))
        for share, prior in zip(SHARES, PRIOR, strict=True):
            for at in range(1, len(COEFFICIENTS)):
                others = np.delete(likelihood[:, at], outcome)
                shared = prior / 9 * np.prod(1 - share + share * others)
                expected[0] += shared * (1 - share)
                expected[at] += shared * share * likelihood[outcome, at]
        assert weights[outcome] == pytest.approx(expected / expected.sum())


def test_outcomes_share_their_evidence() -> None:
    """Independent shifts count as autocorrelated among eleven that are, and the reverse."""
    walks = np.random.default_rng(1).standard_normal((11, 9)).cumsum(axis=1)
    among = autocorrelation.distributions_of([SERIES[0], *walks])
    assert (
        among.autocorrelated[0] > 3 * autocorrelation.distributions_of(SERIES[:1]).autocorrelated[0]
    )
    drawn = np.random.default_rng(2).standard_normal((40, 9))
    clean = autocorrelation.distributions_of([SERIES[0], *drawn])
    assert clean.autocorrelated[0] < 0.05
    yuen = stats.ttest_ind(SERIES[0], np.zeros(9), trim=1 / 9, equal_var=False)
    assert float(clean.p()[0]) == pytest.approx(yuen.pvalue, rel=0.3)


@pytest.mark.parametrize("blocks", [3, 6, 12])
def test_intervals_and_p_values_agree_at_each_level(blocks: int) -> None:
    """A level is passed just where the interval of that confidence leaves the bound out."""
    drawn = np.random.default_rng(blocks).standard_normal((40, 12, blocks)) + 0.1
    means = autocorrelation.distributions(autocorrelation.fit(drawn))
    for confidence in (0.9, 0.95, 0.9968):
        low, high = means.interval(confidence)
        assert (low <= high).all()
        assert ((means.p() <= 1 - confidence) == ((low > 0) | (high < 0))).all()
        inside = means.p_within(0.3) <= (1 - confidence) / 2
        assert (inside == ((low > -0.3) & (high < 0.3))).all()
        assert means.p_above(0.0) + means.p_below(0.0) == pytest.approx(1.0)


def test_slow_runs_do_not_move_the_distribution() -> None:
    """Change blocks of 16: two at either end may be anything."""
    shifts = np.random.default_rng(3).standard_normal(16)
    wild = shifts.copy()
    wild[np.argsort(shifts)[[0, 1, -2, -1]]] = (-900.0, -50.0, 70.0, 800.0)
    intervals = [
        autocorrelation.distributions_of([series])[0].interval() for series in (shifts, wild)
    ]
    assert np.ravel(intervals[0]) == pytest.approx(np.ravel(intervals[1]))


def test_coarse_values_are_not_trimmed() -> None:
    """Thirteen of sixteen blocks agree; the three others are all the spread there is."""
    shifts = np.zeros(16)
    shifts[[2, 7, 11]] = (0.05, 0.06, 0.05)
    fits = autocorrelation.fit(shifts)
    assert (fits.df, fits.centre[0]) == (15, pytest.approx(shifts.mean()))
    assert fits.error[0] == pytest.approx(stats.sem(shifts))


def test_time_may_run_backwards() -> None:
    forth, back = (
        autocorrelation.distributions_of(SERIES),
        autocorrelation.distributions_of(SERIES[:, ::-1]),
    )
    assert forth.p() == pytest.approx(back.p())
    mirrored = autocorrelation.distributions_of(-SERIES)
    assert mirrored.p_above(0.1) == pytest.approx(forth.p_below(-0.1))
    assert mirrored.interval()[0] == pytest.approx(-forth.interval()[1])
