"""What a t test takes for granted, checked: against loops, SciPy and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import signal, stats

from experiments.comparison.statistics import estimates, guards

SERIES = np.random.default_rng(0).normal(0.1, 1, (20, 12))


def correlated(rng: np.random.Generator, count: int, n: int, r: float = 0.7) -> np.ndarray:
    drawn = rng.standard_normal((count, n))
    drawn[:, 1:] *= math.sqrt(1 - r**2)
    return signal.lfilter([1.0], [1.0, -r], drawn, axis=-1)


@pytest.mark.parametrize("shifts", SERIES[:5])
def test_the_autocorrelation_is_that_of_its_definition(shifts):
    middle = sum(shifts) / len(shifts)
    above = sum((one - middle) * (two - middle) for one, two in itertools.pairwise(shifts))
    assert guards.lag_one(shifts).statistic == pytest.approx(above / sum((one - middle) ** 2 for one in shifts))


@pytest.mark.parametrize("n", [6, 12, 30])
def test_without_correlation_five_in_a_hundred_are_called_correlated(n):
    """20,000 series; the normal approximation is a little off where there are six values."""
    drawn = np.random.default_rng(1).standard_normal((20_000, n))
    assert (guards._p_of_lag_one(guards._lag_one(drawn), n) < 0.05).mean() == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize("n", [8, 12, 30])
def test_skewness_is_tested_as_scipy_does(n):
    shifts = np.random.default_rng(n).exponential(size=n)
    found = guards.skewness(shifts)
    assert found is not None
    assert found.statistic == pytest.approx(stats.skew(shifts))
    assert found.p == pytest.approx(stats.skewtest(shifts).pvalue)
    assert guards.skewness(shifts[:7]) is None


@pytest.mark.parametrize("shifts", SERIES[:5])
def test_without_correlation_and_skewness_the_intervals_are_those_of_t(shifts):
    even = np.concatenate([shifts, 2 * shifts.mean() - shifts])  # symmetric about its mean
    expected = estimates.mean(even)
    for found in (guards.correlated_mean(even, -1 / len(even)), guards.skewed_mean(even)):
        assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))


@pytest.mark.parametrize("shifts", np.random.default_rng(2).exponential(size=(5, 12)))
def test_the_bounds_of_a_skewed_mean_are_the_quantiles_of_its_transformation(shifts):
    """Hall 1992: T + g T² / 3 + g² T³ / 27 + g / (6 n), with T = (mean - bound) / SD, is a t quantile over √(n - 1)."""
    found, g, n = guards.skewed_mean(shifts), stats.skew(shifts), len(shifts)
    for bound, sign in ((found.low, 1), (found.high, -1)):
        t = (shifts.mean() - bound) / shifts.std()
        transformed = t + g * t**2 / 3 + g**2 * t**3 / 27 + g / (6 * n)
        assert transformed * math.sqrt(n - 1) == pytest.approx(sign * stats.t.ppf(0.975, n - 1))


def test_intervals_of_correlated_blocks_cover_more_than_those_of_t():
    """1,000 series of 24 with correlation 0.7: the t interval holds the mean in 57 %, the corrected one in about 90 %."""
    series = correlated(np.random.default_rng(3), 1_000, 24)
    plain = [estimates.mean(one) for one in series]
    wider = [guards.correlated_mean(one, guards.lag_one(one).statistic) for one in series]
    covered = [sum(one.low <= 0 <= one.high for one in found) / 1_000 for found in (plain, wider)]
    assert covered[0] < 0.65 < 0.85 < covered[1]


def test_intervals_of_skewed_blocks_cover_more_than_those_of_t():
    """2,000 lognormal samples of 12: the t interval misses the mean in 16 %, Hall's in 9 %."""
    samples = np.exp(np.random.default_rng(4).normal(size=(2_000, 12))) - math.exp(0.5)
    missed = [
        sum(not one.low <= 0 <= one.high for one in map(interval, samples)) / 2_000
        for interval in (estimates.mean, guards.skewed_mean)
    ]
    assert missed[0] > 0.13 > 0.11 > missed[1]


def test_leaving_each_block_out_is_a_t_test_of_the_others():
    for shifts in SERIES[:5]:
        left = guards.leave_one_out(shifts)
        for at in range(len(shifts)):
            others = np.delete(shifts, at)
            expected = stats.ttest_1samp(others, 0)
            interval = expected.confidence_interval()
            assert left.p()[at] == pytest.approx(expected.pvalue)
            assert left.means[at] - left.half()[at] == pytest.approx(interval.low)
            bounds = [stats.ttest_1samp(others, at, alternative=way).pvalue for at, way in ((-0.9, "greater"), (0.9, "less"))]
            assert left.p_within(0.9)[at] == pytest.approx(max(bounds))


def test_the_power_that_is_stated_is_that_of_the_check():
    """Drawn and tested once more, independently: 2,000 of each leave a standard error of 1.1 points each."""
    rng = np.random.default_rng(5)
    found = np.mean([guards.lag_one(one).p < 0.05 for one in correlated(rng, 2_000, 12)])
    assert guards.power_of_lag_one(12) == pytest.approx(found, abs=0.06)
    skewed = np.mean(stats.skewtest(rng.exponential(size=(2_000, 12)), axis=-1).pvalue < 0.05)
    assert guards.power_of_skewness(12) == pytest.approx(skewed, abs=0.06)
    assert guards.power_of_lag_one(6) < guards.power_of_lag_one(12) < guards.power_of_lag_one(24)
