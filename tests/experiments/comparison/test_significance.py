"""Tests, equivalence and multiplicity against published values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from experiments.comparison.statistics import autocorrelation, significance
from experiments.comparison.statistics.autocorrelation import MeanDistribution
from tests.experiments.comparison.test_estimates import SLEEP

DARWIN = np.array([6.0, 8, 14, 16, 23, 24, 28, 29, 41, -48, 49, 56, 60, -67, 75])
# R package `equivalence`
TOST = np.array([6.0, 8, 7, 10, 11, 9]) - np.array([4.0, 7, 8, 6, 3, 2])


def independent(shifts: np.ndarray) -> MeanDistribution:
    """Return the distribution of the mean of blocks that are taken for independent."""
    weights = np.eye(len(autocorrelation.COEFFICIENTS))[0]
    return MeanDistribution(autocorrelation.fit(shifts), weights)


def test_seven_independent_blocks_have_the_paired_t_test_of_the_sleep_data():
    """Trim nothing: R's t.test of the first seven."""
    first, second = (side[:7] for side in SLEEP)
    mean, expected = independent(np.subtract(first, second)), stats.ttest_rel(first, second)
    interval = expected.confidence_interval()
    assert mean.p() == pytest.approx(expected.pvalue)
    assert tuple(map(float, mean.interval())) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize(("margin", "p"), [(1, 0.9293826), (2, 0.8286101)])
def test_equivalence_has_the_p_of_the_equivalence_package(margin, p):
    assert independent(TOST).p_within(margin) == pytest.approx(p, abs=1e-7)


def test_holms_correction():
    ps = [0.01, 0.02, 0.03, 0.04, 0.05]
    assert significance.holm(ps) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    some = significance.holm([None, 0.01, None, 0.04])
    assert some == [None, pytest.approx(0.02), None, pytest.approx(0.04)]
    assert significance.holm([]) == []
    ps = np.random.default_rng(3).uniform(0, 0.2, 15)
    assert significance.holm(ps) == pytest.approx(multipletests(ps, method="holm")[1])


@pytest.mark.parametrize("steps", [4, 100])
def test_papers_procedure_skips_constants(steps):
    assert significance.paper_procedure([1.0] * steps, [2.0] * steps) is None
    same = np.random.default_rng(0).lognormal(size=steps)
    assert significance.paper_procedure(same, same).wilcoxon_p == 1


def test_papers_procedure_calls_processes_of_one_system_different():
    """Two processes, 3 % apart by chance, 100 steps each."""
    rng = np.random.default_rng(5)
    sides = (0.03 * factor * rng.lognormal(0, 0.02, 100) for factor in (1.0, 1.03))
    procedure = significance.paper_procedure(*sides)
    assert procedure is not None
    assert procedure.n_steps == 100
    assert procedure.wilcoxon_p < 1e-6
    normality = (*procedure.ks_p, *procedure.lilliefors_p, *procedure.shapiro_p)
    assert all(0 < p <= 1 for p in normality)
