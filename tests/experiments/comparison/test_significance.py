"""Tests, equivalence, multiplicity and power against published values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from experiments.comparison.statistics import significance
from tests.experiments.comparison.test_estimates import (
    DEPRESSION_X,
    DEPRESSION_Y,
    SLEEP_1,
    SLEEP_2,
)

DARWIN = [6, 8, 14, 16, 23, 24, 28, 29, 41, -48, 49, 56, 60, -67, 75]
# R package `equivalence`
TOST_A, TOST_B = np.array([4.0, 7, 8, 6, 3, 2]), np.array([6.0, 8, 7, 10, 11, 9])
PAGE = [
    [3, 4, 3],
    [2, 2, 4],
    [3, 3, 5],
    [1, 3, 2],
    [2, 3, 2],
    [2, 4, 5],
    [1, 2, 4],
    [3, 4, 4],
    [2, 4, 5],
    [1, 3, 4],
]


def test_signed_rank_of_the_depression_data():
    found = significance.signed_rank(np.subtract(DEPRESSION_X, DEPRESSION_Y))
    assert (found.statistic, found.p) == pytest.approx((40, 2 * 0.01953125), abs=1e-12)


def test_signed_rank_of_darwins_maize():
    found = significance.signed_rank(DARWIN)
    assert found.statistic == 96
    assert found.p == pytest.approx(0.041259765625, abs=1e-12)


def test_paired_t_of_the_sleep_data():
    found = significance.paired_t(np.subtract(SLEEP_1, SLEEP_2))
    assert found is not None
    assert (found.statistic, found.p) == pytest.approx((-4.0621, 0.002833), abs=5e-5)


@pytest.mark.parametrize(("margin", "p"), [(1, 0.9293826), (2, 0.8286101)])
def test_paired_tost_of_the_equivalence_package(margin, p):
    found = significance.tost_paired(TOST_B - TOST_A, -margin, margin)
    assert found is not None
    assert found.p == pytest.approx(p, abs=1e-7)


def test_holms_correction():
    ps = [0.01, 0.02, 0.03, 0.04, 0.05]
    assert significance.holm(ps) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert significance.holm([None, 0.01, None, 0.04]) == [
        None,
        pytest.approx(0.02),
        None,
        pytest.approx(0.04),
    ]
    assert significance.holm([]) == []


def test_adjusted_ps_agree_with_statsmodels():
    ps = np.random.default_rng(3).uniform(0, 0.2, 15)
    assert significance.holm(ps) == pytest.approx(multipletests(ps, method="holm")[1])


def test_pages_trend():
    found = significance.page(PAGE)
    assert (found.statistic, found.p) == pytest.approx((133.5, 0.0018191162), abs=1e-10)


def test_fishers_permutation_of_darwins_maize():
    """Fisher 1935, section 21: 1,726 of 32,768 choices of signs lie as far out."""
    assert significance.permutation_p(DARWIN) == 1_726 / 32_768


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-20, 20), min_size=1, max_size=9))
def test_the_permutation_test_tries_every_sign(shifts):
    sums = [
        abs(sum(s * x for s, x in zip(signs, shifts, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(shifts))
    ]
    assert significance.permutation_p(shifts) == np.mean([one >= abs(sum(shifts)) for one in sums])
    assert significance.permutation_p([1.0] * 16) is None


def test_constants_are_not_tested():
    assert significance.paired_t([0.1] * 8) is None
    assert significance.paired_t([0.3]) is None
    assert significance.tost_paired([0.1] * 8, -1, 1) is None
    assert significance.signed_rank([0.0] * 8).p == 1
    assert significance.paper_procedure([1.0] * 10, [2.0] * 10) is None


@pytest.mark.parametrize("n", [50, 54, 60, 400])
def test_no_p_is_zero(n):
    """SciPy's exact signed-rank p is 0 for one-signed samples from n = 54 on."""
    assert 0 < significance.signed_rank(np.arange(1.0, n + 1)).p < 1e-8
    found = significance.paired_t(1 + 1e-6 * np.random.default_rng(0).normal(size=n))
    assert found is not None
    assert found.p > 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-40, 40), min_size=1, max_size=11))
def test_signed_rank_with_ties_is_the_permutation_test(shifts):
    found = significance.signed_rank(shifts)
    kept = np.array([shift for shift in shifts if shift])
    if not len(kept):
        assert found.p == 1
        return
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(kept))).reshape(len(kept), -1)
    sums = np.where(signs > 0, stats.rankdata(np.abs(kept))[:, None], 0).sum(axis=0)
    tail = min((sums >= found.statistic - 1e-9).mean(), (sums <= found.statistic + 1e-9).mean())
    assert found.p == pytest.approx(min(1, 2 * tail))


def test_exact_signed_rank_agrees_with_scipy():
    values = np.random.default_rng(4).normal(0.3, 1, 30)
    assert significance.signed_rank(values).p == pytest.approx(
        stats.wilcoxon(values, method="exact").pvalue
    )


def test_the_papers_procedure_cries_wolf_on_steps_of_one_process():
    """Two processes of one system, 3 % apart by chance, 100 steps each: the published test is certain of a difference."""
    rng = np.random.default_rng(5)
    found = significance.paper_procedure(
        *(0.03 * factor * rng.lognormal(0, 0.02, 100) for factor in (1.0, 1.03))
    )
    assert found is not None
    assert found.n_steps == 100
    assert found.wilcoxon_p < 1e-6
    assert all(0 < p <= 1 for p in (*found.ks_p, *found.lilliefors_p, *found.shapiro_p))
