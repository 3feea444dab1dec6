"""Estimates, tests, decisions and confidence distributions, against published values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, stats
from statsmodels.stats.multitest import multipletests

from experiments.cell import timing
from experiments.comparison import compare
from experiments.comparison.report import wording
from experiments.comparison.statistics import autocorrelation, estimates, significance
from experiments.comparison.statistics.autocorrelation import (
    COEFFICIENTS,
    PRIOR,
    SHARES,
    MeanDistribution,
)
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.decision import Decision, Effect, paired
from tests.experiments.comparison.campaigns import paired as table_of
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


@pytest.mark.parametrize(
    ("low", "high", "different", "equivalent", "decision"),
    [
        (0.2, 0.4, True, False, Decision.DIFFERENT),
        (-0.4, -0.2, True, False, Decision.DIFFERENT),
        (0.05, 0.3, True, False, Decision.SIZE_OPEN),
        (0.01, 0.05, True, True, Decision.WITHIN_MARGIN),
        (-0.05, 0.05, False, True, Decision.EQUIVALENT),
        (-0.3, 0.3, False, False, Decision.OPEN),
        # beyond the margin, but not after the correction for many tests
        (0.2, 0.4, False, False, Decision.OPEN),
    ],
)
def test_evidence_decides(low, high, different, equivalent, decision):
    effect = Effect(
        Estimate((low + high) / 2, low, high), 0.1, different=different, equivalent=equivalent
    )
    assert effect.decision is decision
    assert decision.is_verdict == (decision not in (Decision.OPEN, Decision.SIZE_OPEN))


@pytest.mark.parametrize(
    ("shift", "decision"),
    [(0.0, Decision.EQUIVALENT), (0.5, Decision.DIFFERENT), (-0.5, Decision.DIFFERENT)],
)
def test_size_decides_on_constant_shifts(shift, decision):
    assert paired([shift] * 6, 0.1).decision is decision


def test_interval_and_equivalence_decide_on_paired_shifts():
    rng = np.random.default_rng(0)
    assert paired(rng.normal(0, 0.01, 12), 0.1).decision is Decision.EQUIVALENT
    assert paired(rng.normal(0.05, 0.01, 12), 0.1).decision is Decision.WITHIN_MARGIN
    assert paired(rng.normal(0, 1, 12), 0.1).decision is Decision.OPEN


def test_interval_wider_than_floats_is_open():
    """The logarithms' interval is ±790: as ratios its ends are 0 and beyond the greatest float."""
    finding = compare(table_of([1.0] * 6, [1e300, 1e-300] * 3)).findings[0]
    row = finding.row
    assert (row.verdict, row.ci_low, row.ci_high) == ("inconclusive", 0.0, None)
    assert wording.sentence(finding)


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
