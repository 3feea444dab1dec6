"""Estimates against published values, and their invariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from experiments.comparison.statistics import estimates
from tracking.errors import UsageError

DEPRESSION_X = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
DEPRESSION_Y = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]
SLEEP_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
DELTA_X = [10, 10, 20, 20, 20, 30, 30, 30, 40, 50]
DELTA_Y = [10, 20, 30, 40, 40, 50]
positive = st.floats(1e-3, 1e3)
samples = st.lists(st.tuples(positive, positive), min_size=2, max_size=25)


def ratio(a, b) -> estimates.Estimate:
    """The geometric mean of b / a, as a verdict computes it."""
    return estimates.exponential(estimates.mean(estimates.log_ratios(a, b)))


def test_paired_hodges_lehmann_of_the_depression_data():
    found = estimates.hodges_lehmann(estimates.differences(DEPRESSION_X, DEPRESSION_Y))
    assert (found.value, found.low, found.high) == pytest.approx((-0.46, -0.786, -0.010), abs=5e-4)


def test_the_mean_difference_of_the_sleep_data():
    found = estimates.mean(estimates.differences(SLEEP_2, SLEEP_1))
    assert (found.value, found.low, found.high) == pytest.approx(
        (-1.58, -2.4598858, -0.7001142), abs=1e-7
    )


def test_effect_sizes_of_the_published_ordinal_example():
    assert estimates.a12(DELTA_Y, DELTA_X) == pytest.approx(0.375)
    assert estimates.a12([1, 2, 3], [1, 2, 3]) == 0.5


def test_geometric_mean_ratio_by_hand():
    found = ratio([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    found = ratio([1.0, 1.0, 1.0], [1.0, 4.0, 2.0])
    half = stats.t.ppf(0.975, 2) * np.std([0, math.log(4), math.log(2)], ddof=1) / math.sqrt(3)
    assert found.value == pytest.approx(2.0)
    assert found.high == pytest.approx(2 * math.exp(half))


def test_two_values_bound_nothing():
    assert estimates.mean([1.0, 1.1]) == estimates.Estimate(
        pytest.approx(1.05), -math.inf, math.inf
    )


@pytest.mark.parametrize(
    ("q", "least"), [(0.5, 6), (0.95, 72), (0.99, 368), (0.999, 3_688), (0.05, 72)]
)
def test_percentiles_are_earned(q, least):
    assert estimates.earned(q, least)
    assert not estimates.earned(q, least - 1)
    values = np.arange(float(least))
    assert estimates.percentile(values, q) == np.quantile(values, q, method="median_unbiased")
    with pytest.raises(UsageError, match=f"n too small: 5 values, p{100 * q:g} needs {least}"):
        estimates.percentile(np.arange(5.0), q)


def test_the_signed_rank_distribution_agrees_with_scipy():
    counts = estimates.signed_rank_distribution(tuple(range(1, 13)))
    assert counts.sum() == pytest.approx(1)
    assert counts[: 20 + 1].sum() == pytest.approx(
        stats.wilcoxon(_with_rank_sum(20, 12), alternative="less", method="exact").pvalue
    )


def _with_rank_sum(total: int, n: int) -> list[int]:
    """1 … n with signs such that the positive ones sum to `total`."""
    signed = []
    for rank in range(n, 0, -1):
        signed.append(rank if rank <= total else -rank)
        total -= rank if rank <= total else 0
    return signed


def test_few_values_bound_nothing():
    assert estimates.mean([1.0]) == estimates.Estimate(1.0, -math.inf, math.inf)
    assert estimates.hodges_lehmann([1.0, 2.0, 3.0, 4.0, 5.0]).low == -math.inf
    assert math.isfinite(estimates.hodges_lehmann([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).low)


@pytest.mark.parametrize("values", [[1.0, math.nan], [1.0, math.inf], []])
def test_what_is_not_a_number_is_refused(values):
    with pytest.raises(UsageError):
        estimates.mean(values)


def test_ratios_of_zero_and_pairs_of_unequal_length_are_refused():
    with pytest.raises(UsageError, match="positive"):
        ratio([0.0, 1.0], [1.0, 1.0])
    with pytest.raises(UsageError, match="2 against 1"):
        estimates.differences([1.0, 2.0], [1.0])


@settings(max_examples=50, deadline=None)
@given(samples, st.floats(1e-6, 1e6))
def test_a_ratio_is_inverted_by_swapping_and_untouched_by_scaling(pairs, scale):
    a, b = np.array(pairs).T
    forth, back = ratio(a, b), ratio(b, a)
    assert forth.value * back.value == pytest.approx(1)
    assert (
        (forth.low, back.high) == (0, math.inf)
        if len(a) < 3
        else forth.low * back.high == pytest.approx(1, rel=1e-6)
    )
    scaled = ratio(scale * a, scale * b)
    assert (scaled.value, scaled.low) == pytest.approx((forth.value, forth.low), rel=1e-6)
    assert estimates.a12(a, b) + estimates.a12(b, a) == pytest.approx(1)


@pytest.mark.parametrize("noise", ["normal", "lognormal", "bimodal"])
def test_t_interval_on_log_ratios_covers(noise):
    """Nominal 95 %, at six blocks; 4,000 draws have a standard error of 0.35 points: chance and skew allow 93–98.5 %."""
    rng, shape = np.random.default_rng(2), (4_000, 6, 2)
    draws = {
        "normal": rng.normal(0, 0.03, shape),
        "lognormal": rng.lognormal(0, 0.5, shape) * 0.03,
        "bimodal": rng.normal(0, 0.01, shape) + 0.05 * rng.integers(0, 2, shape),
    }[noise]
    shifts = draws[..., 1] - draws[..., 0] + math.log(1.1)
    half = stats.t.ppf(0.975, 5) * stats.sem(shifts, axis=1)
    one = estimates.exponential(estimates.mean(shifts[0]))
    assert (one.low, one.high) == pytest.approx(
        (math.exp(shifts[0].mean() - half[0]), math.exp(shifts[0].mean() + half[0]))
    )
    covered = np.abs(shifts.mean(axis=1) - math.log(1.1)) <= half
    assert 0.93 <= covered.mean() <= 0.985


def test_a12_counts_every_pair_of_values_once():
    """Vargha and Delaney's definition, with ties, over all pairs."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, 40).astype(float), rng.integers(2, 11, 31).astype(float)
    expected = np.mean([(y > x) + 0.5 * (y == x) for x in a for y in b])
    assert estimates.a12(a, b) == pytest.approx(expected, abs=1e-15)
