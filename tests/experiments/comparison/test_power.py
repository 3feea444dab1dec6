"""Power of blocks, against simulated campaigns that SciPy's tests judge."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from experiments.comparison import compare
from experiments.comparison.statistics import power
from experiments.comparison.verdicts.decision import Decision
from tests.experiments.comparison.campaigns import paired

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
    assert power.minimum_for_verdict(MARGIN, 0.02, 1) == math.inf
    assert power.minimum_detectable(0.0, 6) == 0
    assert power.minimum_for_verdict(MARGIN, 0.0, 6) == MARGIN
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
    rng, table = np.random.default_rng(8), paired(np.ones(16), np.exp(OPEN), "m/x_seconds")
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
    finding = compare(paired(np.ones(8), np.exp(shifts), "m/x_seconds")).findings[0]
    assert finding.plan is None
    assert not re.search(r"\d+ more block", finding.row.reason)
