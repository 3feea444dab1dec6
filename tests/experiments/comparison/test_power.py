"""What blocks can show, against simulation: plain loops over drawn campaigns, judged by SciPy's own tests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from experiments.comparison import compare
from experiments.comparison.statistics import power
from experiments.comparison.verdicts.decision import Decision
from tests.experiments.comparison.campaigns import frame, paired

MARGIN = math.log1p(0.03)


def shown(draws: np.ndarray, tests: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of campaigns (a row each): whether a difference stands among the tests, lies beyond ±3 %, or is inside (TOST)."""
    n, mean, error = draws.shape[1], np.abs(draws.mean(axis=1)), stats.sem(draws, axis=1)
    stands = stats.ttest_1samp(draws, 0, axis=1).pvalue <= 0.05 / tests
    beyond = mean - stats.t.ppf(0.975, n - 1) * error > MARGIN
    return stands, beyond, mean + stats.t.ppf(0.95, n - 1) * error < MARGIN


def settled(draws: np.ndarray, tests: int) -> np.ndarray:
    stands, beyond, inside = shown(draws, tests)
    return (stands & beyond) | inside


# ---- the least effects


@pytest.mark.parametrize("n", [2, 3, 6, 12, 100])
def test_minimum_detectable_is_found_with_its_power(n):
    found = power.minimum_detectable(0.02, n)
    assert power.power_of_t(found, 0.02, n) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(("n", "sd"), [(6, 0.02), (12, 0.03), (12, 0.005)])
def test_the_least_effects_of_a_family_and_of_a_verdict_are_shown_with_their_power(n, sd):
    """4,000 campaigns: the standard error of .8 is .6 points."""
    rng = np.random.default_rng(1)
    one, twelve = (power.minimum_detectable(sd, n, tests=tests) for tests in (1, 12))
    decided = power.minimum_for_verdict(MARGIN, sd, n, tests=12)
    assert one < twelve < decided or decided > MARGIN
    found = [shown(rng.normal(effect, sd, (4_000, n)), 12) for effect in (one, twelve, decided)]
    assert found[0][0].mean() < 0.5  # what is found alone is mostly missed among twelve
    assert found[1][0].mean() == pytest.approx(0.8, abs=0.025)
    assert (found[2][0] & found[2][1]).mean() == pytest.approx(0.8, abs=0.025)


def test_a_row_tells_the_least_effects_among_the_tests_of_its_report():
    rng = np.random.default_rng(2)
    table = frame(blocks=12).assign(**{f"m{at}/x_seconds": np.exp(rng.normal(0, 0.03, 24)) for at in range(12)})
    names = [f"m{at}/x_seconds" for at in range(12)]
    alone, among = (compare(table, outcomes=asked).findings[0] for asked in (names[:1], names))
    assert alone.row.minimum_detectable == among.row.minimum_detectable == alone.row.minimum_in_family
    assert alone.spread == among.spread
    sd = among.spread
    for finding, tests in ((alone, 1), (among, 12)):
        told = math.log1p(finding.row.minimum_in_family), math.log1p(finding.row.minimum_for_verdict)
        assert told == pytest.approx(
            (power.minimum_detectable(sd, 12, tests=tests), power.minimum_for_verdict(MARGIN, sd, 12, tests=tests))
        )
    untested = compare(frame(blocks=4)).rows
    assert {(row.minimum_in_family, row.minimum_for_verdict) for row in untested} == {(None, None)}


def test_guards():
    assert power.minimum_detectable(0.02, 1) == power.minimum_for_verdict(MARGIN, 0.02, 1) == math.inf
    assert power.minimum_detectable(0.0, 6) == 0
    assert power.minimum_for_verdict(MARGIN, 0.0, 6) == MARGIN
    assert power.power_of_t(1e6, 1e-6, 6) == 1
    assert power.blocks_to_settle(MARGIN, 0.02, 6, MARGIN) == power.Plan(None, None, None)


# ---- how many more blocks


@pytest.mark.parametrize(
    ("mean", "sd", "tests"), [(0.0, 0.05, 1), (0.01, 0.03, 12), (0.05, 0.03, 12), (-0.05, 0.05, 12), (0.1, 0.1, 1)]
)
def test_a_plan_has_its_power_and_no_more(mean, sd, tests):
    """6,000 campaigns: a standard error of half a point. A plan is a step of 6 % too large at most, or one block."""
    rng, plan = np.random.default_rng(3), power.blocks_to_settle(mean, sd, 6, MARGIN, tests=tests)
    assert plan.fewest <= plan.blocks <= plan.most
    enough, fewer = (6 + plan.blocks, 6 + min(plan.blocks - 1, int(plan.blocks / 1.09)))
    assert settled(rng.normal(mean, sd, (6_000, enough)), tests).mean() > 0.785
    assert settled(rng.normal(mean, sd, (6_000, fewer)), tests).mean() < 0.815


def _added(ratio: float, sd: float, tests: int, campaigns: int) -> float:
    """The share of campaigns, open after 8 blocks, that are settled once exactly the blocks told have been added."""
    rng, found = np.random.default_rng(4), []
    while len(found) < campaigns:
        first = rng.normal(math.log(ratio), sd, 8)
        if settled(first[None], tests)[0]:
            continue
        more = power.blocks_to_settle(float(first.mean()), float(first.std(ddof=1)), 8, MARGIN, tests=tests).blocks
        later = rng.normal(math.log(ratio), sd, min(more or 100_000, 100_000))
        found.append(bool(more) and settled(np.append(first, later)[None], tests)[0])
    return float(np.mean(found))


@pytest.mark.parametrize(("ratio", "least", "most"), [(1.0, 0.8, 1.0), (1.06, 0.7, 1.0), (1.03, 0.0, 0.3)])
def test_adding_what_is_told_settles_it_but_not_at_the_margin(ratio, least, most):
    """150 campaigns: a standard error of at most 4 points. On the margin itself nothing can be settled but falsely."""
    assert least <= _added(ratio, 0.04, 12, 150) <= most


@pytest.mark.slow
@pytest.mark.parametrize("tests", [1, 12])
@pytest.mark.parametrize(
    ("ratio", "sd"), [*((ratio, sd) for ratio in (1.0, 1.01, 1.02, 1.03, 1.05) for sd in (0.02, 0.05)), (1.1, 0.05)]
)
def test_adding_what_is_told_settles_most(ratio, sd, tests):
    """300 campaigns: a standard error of at most 3 points. With -s it prints the table of docs/comparison.md."""
    share = _added(ratio, sd, tests, 300)
    print(f"\ntrue ratio {ratio}, SD {sd:.0%}, among {tests}: {share:.0%} settled")
    assert share < 0.2 if ratio == 1.03 else share > 0.55


def test_the_plan_is_for_this_verdict_among_the_reports_tests():
    """The same open row: alone, and beside eleven others that show nothing, which cost Holm's correction more blocks."""
    rng = np.random.default_rng(8)
    table = paired(np.ones(8), np.exp(rng.normal(0.06, 0.05, 8)), "m/x_seconds")
    others = {f"m{at}/x_seconds": np.exp(rng.normal(0, 0.01, 16)) for at in range(11)}
    alone = compare(table).findings[0]
    among = next(one for one in compare(table.assign(**others)).findings if one.row.metric == "m/x_seconds")
    assert alone.decision in (Decision.OPEN, Decision.SIZE_OPEN)
    mean = float(alone.shifts.mean())
    assert alone.plan == power.blocks_to_settle(mean, alone.spread, 8, MARGIN)
    assert among.plan == power.blocks_to_settle(mean, among.spread, 8, MARGIN, tests=12)
    assert f"about {among.plan.blocks} more blocks would settle it if the truth is what was seen" in among.row.reason
    assert f"({among.plan.fewest} to {among.plan.most}, as the spread is known)" in among.row.reason


def test_tests_that_stand_cost_the_others_nothing():
    rng, shifts = np.random.default_rng(6), 0.12 + 0.112 * np.array([-1, 1, -1, 1, -1, 1, -1, 1.0])
    values = {f"m{at}/x_seconds": np.exp(0.5 * (np.arange(16) >= 8) + rng.normal(0, 0.01, 16)) for at in range(11)}
    table = paired(np.ones(8), np.exp(shifts), "m/x_seconds").assign(**values)
    found = next(one for one in compare(table).findings if one.row.metric == "m/x_seconds")
    expected, costly = (power.blocks_to_settle(0.12, found.spread, 8, MARGIN, tests=tests) for tests in (1, 12))
    assert found.plan == expected
    assert costly != expected


def test_a_plan_tells_the_machines_time():
    """Both runs of a block, one after the other, take 20 minutes together: three blocks an hour."""
    rng = np.random.default_rng(7)
    table = paired(np.ones(8), np.exp(rng.normal(0.06, 0.05, 8)), "m/x_seconds")
    first = table["framework"] == "a"
    timed = table.assign(start_ms=np.where(first, 0, 300_000), end_ms=np.where(first, 300_000, 1_200_000))
    found = compare(timed).findings[0]
    assert found.block_seconds == 1_200
    assert f"; {found.plan.blocks / 3:,.0f} h of machine time)" in found.row.reason
    assert "machine time" not in compare(table).rows[0].reason


def test_on_the_margin_no_number_of_blocks_is_told():
    shifts = MARGIN + 0.05 * np.array([-1, 1, -1, 1, -1, 1, -1, 1.0])
    found = compare(paired(np.ones(8), np.exp(shifts), "m/x_seconds")).findings[0]
    assert "no payable number of blocks would settle it" in found.row.reason
