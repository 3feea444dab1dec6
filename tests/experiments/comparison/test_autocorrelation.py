"""Confidence distribution of each mean, from AR(1) models whose evidence outcomes share."""

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
    """The same from dense matrices, for every coefficient."""
    shifts = np.random.default_rng(n).standard_normal(n) + 2
    fits, ones, plain = autocorrelation.fit(shifts), np.ones(n), 0.0
    for at, phi in enumerate(COEFFICIENTS):
        matrix = linalg.toeplitz(phi ** np.arange(n))
        inverse = np.linalg.inv(matrix)
        precision = ones @ inverse @ ones
        mean = ones @ inverse @ shifts / precision
        squares = (shifts - mean) @ inverse @ (shifts - mean)
        determinant = np.linalg.slogdet(matrix)[1]
        likelihood = determinant + math.log(precision) + (n - 1) * math.log(squares)
        plain = plain or likelihood
        assert fits.mean[at] == pytest.approx(mean)
        assert fits.error[at] == pytest.approx(math.sqrt(squares / ((n - 1) * precision)))
        assert fits.log_likelihood[at] == pytest.approx(-(likelihood - plain) / 2)
    assert (fits.df, fits.skewness) == (n - 1, pytest.approx(stats.skew(shifts)))
    assert fits.error[0] == pytest.approx(stats.sem(shifts))


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
    assert float(clean.p()[0]) == pytest.approx(stats.ttest_1samp(SERIES[0], 0).pvalue, rel=0.3)


@pytest.mark.parametrize("blocks", [3, 6, 12])
@pytest.mark.parametrize("skewed", [False, True])
def test_intervals_and_p_values_agree_at_each_level(blocks: int, skewed: bool) -> None:
    """A level is passed just where the interval of that confidence leaves the bound out."""
    rng = np.random.default_rng(blocks)
    draw = rng.standard_exponential if skewed else rng.standard_normal
    drawn = draw((40, 12, blocks)) - 0.5 * skewed + 0.1
    means = autocorrelation.distributions(autocorrelation.fit(drawn))
    assert blocks < 12 or (means.skewed.mean() > 0.5) == skewed
    for confidence in (0.9, 0.95, 0.9968):
        low, high = means.interval(confidence)
        assert (low <= high).all()
        assert ((means.p() <= 1 - confidence) == ((low > 0) | (high < 0))).all()
        inside = means.p_within(0.3) <= (1 - confidence) / 2
        assert (inside == ((low > -0.3) & (high < 0.3))).all()
        both = means.p_above(0.0) + means.p_below(0.0)
        assert np.where(means.skewed, 1.0, both) == pytest.approx(1.0)


def test_skewed_tail_is_halls() -> None:
    """No p is smaller than those of t and of its transformation, which takes the skewness out."""
    shifts = np.array([0.1, 0.2, 0.1, 0.3, 0.2, 0.1, 0.4, 0.2, 0.1, 0.3, 2.5, 0.2])
    means = autocorrelation.distributions_of([shifts] * 5)
    assert means.skewed.all()
    n, g = len(shifts), 2 * stats.skew(shifts)
    t = shifts.mean() / shifts.std()
    hall = stats.t.sf(math.sqrt(n - 1) * (t + g * t**2 / 3 + g**2 * t**3 / 27 + g / (6 * n)), n - 1)
    assert means.p_above(0.0)[0] >= hall * (1 - 1e-9)
    assert means.p_above(0.0)[0] >= stats.t.sf(math.sqrt(n - 1) * t, n - 1)
    assert not autocorrelation.distributions_of(SERIES).skewed.any()


def test_time_may_run_backwards() -> None:
    forth, back = (
        autocorrelation.distributions_of(SERIES),
        autocorrelation.distributions_of(SERIES[:, ::-1]),
    )
    assert forth.p() == pytest.approx(back.p())
    mirrored = autocorrelation.distributions_of(-SERIES)
    assert mirrored.p_above(0.1) == pytest.approx(forth.p_below(-0.1))
    assert mirrored.interval()[0] == pytest.approx(-forth.interval()[1])
