"""Estimates against published values, and their invariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from experiments.cell import timing
from experiments.comparison.statistics import estimates
from tracking.errors import ErrorCode, UsageError

# R's `sleep`
SLEEP = (
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
)
positive = st.floats(1e-3, 1e3)
samples = st.lists(st.tuples(positive, positive), min_size=2, max_size=25)


def ratio(a, b) -> estimates.Estimate:
    """Return the trimmed geometric mean of b / a."""
    return estimates.exponential(estimates.trimmed_mean(estimates.log_ratios(a, b)))


@pytest.mark.parametrize(("count", "cut"), [(7, 0), (8, 1), (10, 1), (43, 5)])
def test_trimmed_mean_is_that_of_yuens_test(count, cut):
    """SciPy's test of two samples, of which the other is a constant."""
    values = np.random.default_rng(count).standard_t(2, count) + 0.5
    mean = estimates.trimmed_mean(values, 0.9)
    yuen = stats.ttest_ind(values, np.zeros(count), trim=cut / count, equal_var=False)
    assert mean.value == pytest.approx(stats.trim_mean(values, cut / count))
    half = stats.t.ppf(0.95, count - 2 * cut - 1) * mean.value / yuen.statistic
    assert (mean.low, mean.high) == pytest.approx((mean.value - half, mean.value + half))


def test_geometric_mean_ratio_by_hand():
    mean = ratio([1.0, 1.0, 1.0], [1.0, 4.0, 2.0])
    half = stats.t.ppf(0.975, 2) * np.std([0, math.log(4), math.log(2)], ddof=1) / math.sqrt(3)
    assert mean.value == pytest.approx(2.0)
    assert mean.high == pytest.approx(2 * math.exp(half))


@pytest.mark.parametrize("values", [[1.05], [1.0, 1.1]])
def test_few_values_bound_nothing(values):
    mean = estimates.trimmed_mean(values)
    assert (mean.value, mean.low, mean.high) == (pytest.approx(1.05), -math.inf, math.inf)


@pytest.mark.parametrize(("percent", "least"), timing.EARNED_AT.items())
def test_cells_report_percentiles_from_enough_values(percent, least):
    """The interval from the least to the greatest value misses the quantile on one side."""
    q = percent / 100
    assert max(q, 1 - q) ** least <= 0.025 < max(q, 1 - q) ** (least - 1)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: estimates.trimmed_mean([1.0, math.nan]), ErrorCode.INVALID_VALUE),
        (lambda: estimates.trimmed_mean([1.0, math.inf]), ErrorCode.INVALID_VALUE),
        (lambda: estimates.trimmed_mean([]), ErrorCode.TOO_FEW),
        (lambda: ratio([0.0, 1.0], [1.0, 1.0]), ErrorCode.INVALID_VALUE),
        (lambda: estimates.differences([1.0, 2.0], [1.0]), ErrorCode.INVALID_VALUE),
    ],
)
def test_invalid_values_are_refused(call, code):
    with pytest.raises(UsageError) as error:
        call()
    assert error.value.code is code


@settings(max_examples=25, deadline=None)
@given(samples, st.floats(1e-6, 1e6))
def test_swapping_sides_inverts_a_ratio_and_scaling_leaves_it(pairs, scale):
    a, b = np.array(pairs).T
    forth, back = ratio(a, b), ratio(b, a)
    assert forth.value * back.value == pytest.approx(1)
    if len(a) < 3:
        assert (forth.low, back.high) == (0, math.inf)
    else:
        assert forth.low * back.high == pytest.approx(1, rel=1e-6)
    scaled = ratio(scale * a, scale * b)
    assert (scaled.value, scaled.low) == pytest.approx((forth.value, forth.low), rel=1e-6)
    assert estimates.a12(a, b) + estimates.a12(b, a) == pytest.approx(1)


def test_t_interval_on_log_ratios_covers():
    """4,000 draws of six bimodal blocks: a standard error of 0.35 points."""
    rng, shape = np.random.default_rng(2), (4_000, 6, 2)
    draws = rng.normal(0, 0.01, shape) + 0.05 * rng.integers(0, 2, shape)
    shifts = draws[..., 1] - draws[..., 0]
    intervals = [estimates.trimmed_mean(campaign) for campaign in shifts]
    covered = np.mean([interval.low <= 0 <= interval.high for interval in intervals])
    assert 0.93 <= covered <= 0.985


def test_a12_counts_every_pair_of_values():
    """Vargha and Delaney's definition with ties, and a published ordinal example."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, 40).astype(float), rng.integers(2, 11, 31).astype(float)
    expected = np.mean([(y > x) + 0.5 * (y == x) for x in a for y in b])
    assert estimates.a12(a, b) == pytest.approx(expected, abs=1e-15)
    published = [10, 20, 30, 40, 40, 50], [10, 10, 20, 20, 20, 30, 30, 30, 40, 50]
    assert estimates.a12(*published) == pytest.approx(0.375)
