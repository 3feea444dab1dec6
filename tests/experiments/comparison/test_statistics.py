"""Estimates, tests, decisions, confidence distributions and power, against published values."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, stats
from statsmodels.stats.multitest import multipletests

from experiments.cell import timing
from experiments.comparison import compare
from experiments.comparison.report import wording
from experiments.comparison.statistics import autocorrelation, estimates, power, significance
from experiments.comparison.statistics.autocorrelation import (
    COEFFICIENTS,
    PRIOR,
    SHARES,
    MeanDistribution,
)
from experiments.comparison.verdicts.decision import Decision
from tests.experiments.comparison.campaigns import paired as table_of
from tracking.errors import UsageError

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


@pytest.mark.parametrize("values", [[1.05], [1.0, 1.1]])
def test_few_values_bound_nothing(values):
    mean = estimates.trimmed_mean(values)
    assert (mean.value, mean.low, mean.high) == (pytest.approx(1.05), -math.inf, math.inf)


@pytest.mark.parametrize(("percent", "least"), timing.EARNED_AT.items())
def test_cells_report_percentiles_from_enough_values(percent, least):
    """The interval from the least to the greatest value misses the quantile on one side."""
    q = percent / 100
    assert max(q, 1 - q) ** least <= 0.025 < max(q, 1 - q) ** (least - 1)


@pytest.mark.parametrize("invalid", [math.nan, math.inf])
def test_invalid_values_are_refused(invalid):
    with pytest.raises(UsageError, match="NaN or infinities"):
        estimates.trimmed_mean([1.0, invalid])


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
    assert significance.paper_procedure(same, same)[2] == 1


def test_papers_procedure_calls_processes_of_one_system_different():
    """Two processes, 3 % apart by chance, 100 steps each."""
    rng = np.random.default_rng(5)
    sides = (0.03 * factor * rng.lognormal(0, 0.02, 100) for factor in (1.0, 1.03))
    count, normality, wilcoxon_p = significance.paper_procedure(*sides)
    assert (count, wilcoxon_p < 1e-6) == (100, True)
    assert all(0 < p <= 1 for both in normality for p in both)


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


MARGIN = math.log1p(0.03)


def shown(draws: np.ndarray, tests: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Judge campaigns, a row each.

    Returns:
        Whether a difference stands among the tests, lies beyond ±3 %, and is inside (TOST).
    """
    n = draws.shape[1]
    yuen = stats.ttest_ind(draws, 0 * draws, axis=1, trim=(n // 8) / n, equal_var=False)
    signed = stats.trim_mean(draws, (n // 8) / n, axis=1)
    mean, error = np.abs(signed), signed / yuen.statistic
    beyond = mean - stats.t.ppf(0.975, df(n)) * error > MARGIN
    inside = mean + stats.t.ppf(0.95, df(n)) * error < MARGIN
    return yuen.pvalue <= 0.05 / tests, beyond, inside


def df(n: int) -> int:
    """Return the degrees of freedom of a mean without an eighth of n values at each end."""
    return n - 2 * (n // 8) - 1


# ---- the least effects


@pytest.mark.parametrize("n", [2, 3, 6, 12, 100])
def test_minimum_detectable_has_its_power(n):
    effect = power.minimum_detectable(0.02, n)
    assert power.power_of_t(effect, 0.02, n) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(("n", "sd"), [(6, 0.02), (12, 0.03), (12, 0.005)])
def test_least_effects_of_a_family_and_of_a_verdict_have_their_power(n, sd):
    """4,000 campaigns: the standard error of .8 is .6 points."""
    rng = np.random.default_rng(1)
    single, twelve = (power.minimum_detectable(sd, n, tests=tests) for tests in (1, 12))
    decided = power.minimum_for_verdict(MARGIN, sd, n, tests=12)
    assert single < twelve < decided or decided > MARGIN
    results = [
        shown(rng.normal(effect, sd, (4_000, n)), 12) for effect in (single, twelve, decided)
    ]
    assert results[0][0].mean() < 0.5  # mostly missed among twelve
    assert results[1][0].mean() == pytest.approx(0.8, abs=0.025)
    assert (results[2][0] & results[2][1]).mean() == pytest.approx(0.8, abs=0.025)


def test_limits():
    assert power.minimum_detectable(0.02, 1) == math.inf
    assert power.minimum_detectable(0.0, 6) == 0
    assert power.power_of_t(1e6, 1e-6, 6) == 1
    assert power.blocks_to_settle(MARGIN, 0.02, 6, MARGIN, most=0) is None


# ---- how many more blocks


def is_settled(mean: np.ndarray, sd: np.ndarray, n: int, tests: int) -> np.ndarray:
    """Return whether campaigns of n blocks with these estimates have any verdict."""
    size, error = np.abs(mean), sd / math.sqrt(n)
    limits = (
        MARGIN + stats.t.ppf(0.975, df(n)) * error,
        stats.t.ppf(1 - 0.025 / tests, df(n)) * error,
    )
    return (size > np.maximum(*limits)) | (size + stats.t.ppf(0.95, df(n)) * error < MARGIN)


def drawn(mean: float, sd: float, n: int, campaigns: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    spread = sd * np.sqrt(rng.chisquare(df(n), campaigns) / df(n))
    return rng.normal(mean, sd / math.sqrt(n), campaigns), spread


def blocks_needed(mean: float, sd: float, tests: int) -> float:
    """Return the blocks that settle 80 % of campaigns, to within 2 %; infinite above 20,000."""

    def enough(n: int) -> bool:
        return bool(is_settled(*drawn(mean, sd, n, 10_000), n, tests).mean() >= 0.8)

    high = 4
    while not enough(high):
        high *= 2
        if high > 20_000:
            return math.inf
    low = high // 2
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class Predicted:
    """Plans of open campaigns.

    Attributes:
        needed: blocks that settle 80 % of campaigns.
        numbers: share of plans with a number.
        wrong: share whose number is too small.
        median: of the numbers.
    """

    needed: float
    numbers: float
    wrong: float
    median: float


def predicted(ratio: float, sd: float, n: int, tests: int, plans: int) -> Predicted | None:
    """Return the plans of campaigns that are open after n blocks; None if hardly any is."""
    means, spreads = drawn(math.log(ratio), sd, n, 100 * plans)
    still_open = ~is_settled(means, spreads, n, tests)
    cases = list(zip(means[still_open][:plans], spreads[still_open][:plans], strict=True))
    if len(cases) < plans / 4:
        return None
    needed, most = max(1, blocks_needed(math.log(ratio), sd, tests) - n), 10 * n
    numbers_of_plans = [
        power.blocks_to_settle(*case, n, MARGIN, most=most, tests=tests) for case in cases
    ]
    numbers = np.array([blocks for blocks in numbers_of_plans if blocks])
    # the number of blocks rises in steps of 6 %
    wrong = float((needed > 1.06 * numbers).sum()) / len(cases)
    return Predicted(
        needed,
        len(numbers) / len(cases),
        wrong,
        float(np.median(numbers)) if len(numbers) else math.nan,
    )


@pytest.mark.parametrize(
    ("ratio", "sd", "tests", "numbers"),
    [(1.03, 0.02, 1, 0.0), (1.1, 0.05, 12, 0.25), (1.2, 0.2, 12, 0.2)],
)
def test_hardly_any_number_of_blocks_is_too_small(ratio, sd, tests, numbers):
    """300 plans: a standard error of 2.3 points. tests/benchmarks/test_more_blocks.py has more."""
    plans = predicted(ratio, sd, 8, tests, 300)
    assert plans is not None
    assert plans.wrong <= 0.2 * plans.numbers + 3 * 0.023
    assert plans.numbers >= numbers


OPEN = 0.14 + 0.17 * np.resize([-1.0, 1.0], 16)


@pytest.mark.usefixtures("often")
def test_plan_is_for_a_verdict_among_the_tests_of_a_report():
    """Eleven other outcomes that show nothing cost Holm's correction more blocks."""
    rng, table = np.random.default_rng(8), table_of(np.ones(16), np.exp(OPEN), "m/x_seconds")
    others = {f"m{at}/x_seconds": np.exp(rng.normal(0, 0.01, 32)) for at in range(11)}
    single = compare(table).findings[0]
    findings = compare(table.assign(**others)).findings
    among = next(finding for finding in findings if finding.row.metric == "m/x_seconds")

    def blocks(tests: int) -> int | None:
        mean = float(OPEN.mean())
        return power.blocks_to_settle(mean, among.spread, 16, MARGIN, most=160, tests=tests)

    assert (single.decision, among.decision) == (Decision.DIFFERENT, Decision.OPEN)
    assert among.plan == blocks(12)
    assert blocks(1) < among.plan <= 10 * 16
    assert f"at most {among.plan} more blocks" in among.row.reason


def test_effect_at_the_margin_has_no_plan():
    shifts = MARGIN + 0.05 * np.array([-1, 1, -1, 1, -1, 1, -1, 1.0])
    finding = compare(table_of(np.ones(8), np.exp(shifts), "m/x_seconds")).findings[0]
    assert finding.plan is None
    assert not re.search(r"\d+ more block", finding.row.reason)
