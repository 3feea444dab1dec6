"""Doubts beside a verdict: blocks that resemble the block before, a tail on one side, one block alone; and what has to agree."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import signal

from experiments.comparison import compare
from experiments.comparison.report import tables, wording
from experiments.comparison.verdicts import reasons, verdict
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Finding, Pair
from experiments.config.outcomes import outcome
from tests.experiments.comparison.campaigns import STEP, paired

OUTCOME = outcome(STEP)
# Twelve shifts that wander, with a mean of 6 % and an SD of 3 %: p = 0.00003 if they knew nothing of each other.
WANDERING = np.array([2.4, 2.9, 2.0, 3.1, 4.4, 5.6, 7.4, 8.8, 8.1, 9.6, 8.9, 9.5]) / 100
SHUFFLED = WANDERING[[3, 9, 0, 7, 4, 11, 1, 8, 5, 2, 10, 6]]
# Ten hundredths, each a little off, and a disturbed block.
STEADY = np.array([9.1, 10.6, 10.2, 9.5, 10.9, 9.8, 10.4, 9.3, 10.1, 9.9, 10.7, 9.6]) / 100


def judged(shifts: np.ndarray) -> Finding:
    """One outcome alone, through the code of every row."""
    a, b = np.ones(len(shifts)), np.exp(shifts)
    row = verdict._blank(OUTCOME, "framework", "a", "b", 0.03, "")
    pairs = tuple(Pair(str(at), 1.0, float(one), at) for at, one in enumerate(b))
    found = verdict._estimated(replace(row, n_blocks=len(pairs)), OUTCOME, pairs, a, b)
    return reasons.decided([found], reasons.ROWS, lambda one, _: one)[0]


def test_blocks_that_resemble_the_block_before_cost_the_verdict():
    """The same shifts in another order are slower; in this one they are worth two or three blocks."""
    found, shuffled = judged(WANDERING), judged(SHUFFLED)
    assert found.row.p == pytest.approx(shuffled.row.p)
    assert (shuffled.row.verdict, shuffled.doubts) == ("slower", ())
    assert (found.row.verdict, found.different, found.judged) == ("inconclusive", False, False)
    assert "doubt: blocks resemble the block before (autocorrelation 0." in found.row.reason
    assert "of one of 0.7 this check finds 6" in found.row.reason
    assert "does not agree" in found.row.reason


def test_the_order_is_that_of_time_and_not_of_block_numbers():
    """Blocks whose numbers are in random order: in time, their shifts rise."""
    table = paired([1.0] * 12, np.exp(SHUFFLED).tolist())
    when = np.argsort(np.argsort(SHUFFLED))[table["block"]]
    a_first = (table["framework"] == "a") == (when % 2 == 0)
    found = compare(table.assign(start_ms=10_000 * when + np.where(a_first, 0, 1_000)), outcomes=[STEP])
    assert [one.kind for one in found.findings[0].doubts] == ["autocorrelation"]
    assert not compare(table, outcomes=[STEP]).findings[0].doubts


def test_a_doubt_with_which_the_wider_interval_agrees_stands_beside_the_verdict():
    found = judged(WANDERING + 0.5)
    assert (found.row.verdict, found.different) == ("slower", True)
    assert "the wider interval" in found.row.reason
    assert " agrees" in found.row.reason
    assert "Doubt: blocks resemble the block before" in wording.sentence(found)
    assert "in doubt" in wording._brief(found)


def test_the_wider_interval_is_told_as_the_effect_is():
    """Half as long is 2 times faster: the same shifts the other way round have the same words but for the direction."""
    slower, faster = (judged(sign * (WANDERING + 0.5)).row.reason for sign in (1, -1))
    told = [re.search(r"the wider interval ([0-9.]+)–([0-9.]+)", reason) for reason in (slower, faster)]
    assert all(told)
    assert told[0].groups() == told[1].groups()
    assert float(told[0][1]) > 1


def test_a_tail_on_one_side_is_said():
    shifts = np.array([0.1, 0.2, 0.1, 0.3, 0.2, 0.1, 0.4, 0.2, 0.1, 0.3, 2.5, 0.2]) / 10
    found = judged(shifts)
    assert [one.kind for one in found.doubts] == ["skewness"]
    tail = judged(shifts + 0.5)
    assert "a long tail on one side (skewness +" in tail.row.reason


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.5])
def test_what_never_varies_is_in_no_doubt(shift):
    found = judged(np.full(12, shift))
    assert (found.doubts, found.remarks, found.row.p) == ((), (), None)
    assert found.row.ci_low == found.row.estimate == found.row.ci_high


def test_fewer_than_six_blocks_are_in_no_doubt():
    assert judged(WANDERING[:5]).doubts == ()


def test_a_block_on_which_a_verdict_hangs_is_named():
    disturbed = STEADY.copy()
    disturbed[7] = -0.6
    found = judged(disturbed)
    assert found.row.verdict == "inconclusive"
    assert "this verdict hangs on block 7: without it slower" in found.row.reason
    assert "the Hodges-Lehmann estimate, which a single block moves little, says otherwise: 1.1" in found.row.reason
    assert "hangs" not in judged(STEADY).row.reason
    assert "hangs" not in judged(disturbed[:9]).row.reason  # from ten blocks on


def test_a_verdict_that_one_block_makes_hangs_on_it():
    found = judged(np.array([-1.0, 1.2, 0.2, -0.6, 0.9, -0.3, 1.1, -0.9, 0.4, -0.2, 0.6, 0.8]) / 100 + 0.0285)
    without = [judged(np.delete(found.shifts, at)).judged for at in range(12)]
    hangs = [line for line in found.remarks if "hangs" in line]
    assert bool(hangs) == any(one != found.judged for one in without)


def test_both_estimates_stand_in_the_report_with_their_intervals():
    found = compare(paired([1.0] * 12, np.exp(STEADY).tolist()), outcomes=[STEP])
    section = tables.second_opinions(found)
    names = [getattr(column, "name", column) for column in section.columns]
    at = names.index("Hodges-Lehmann")
    assert names[at + 1] == "95 % interval"
    (line,) = section.rows
    assert line[at : at + 2] == ("1.105", "1.100 to 1.110")


def test_a_summary_is_not_said_more_boldly_than_its_strata_allow():
    """Three machines that wander: their means agree by chance, and each is worth fewer blocks than it has."""

    def together(shifts: np.ndarray) -> Finding:
        parts = []
        for at in range(3):
            part = paired([1.0] * 12, np.exp(shifts + 0.002 * at).tolist())
            a_first = (part["framework"] == "a") == (part["block"] % 2 == 0)
            parts.append(part.assign(machine=f"m{at}", start_ms=10_000 * part["block"] + np.where(a_first, 0, 1_000)))
        return compare(pd.concat(parts), outcomes=[STEP], strata=["machine"]).summaries[0]

    plain, doubted = together(SHUFFLED), together(WANDERING)
    assert (plain.doubts, plain.row.verdict) == ((), "slower")
    assert doubted.row.estimate == pytest.approx(plain.row.estimate)
    assert doubted.across is not None
    assert doubted.across.doubted == ("machine=m0", "machine=m1", "machine=m2")
    assert doubted.doubts[0].interval.low < math.log(plain.row.ci_low)
    assert doubted.decision is not Decision.DIFFERENT
    assert "doubt: machine=m0; machine=m1; machine=m2 in doubt" in doubted.row.reason


# ---- what is promised, and what not


def correlated(rng: np.random.Generator, count: int, n: int, r: float) -> np.ndarray:
    drawn = rng.standard_normal((count, n))
    drawn[:, 1:] *= math.sqrt(1 - r**2)
    return signal.lfilter([1.0], [1.0, -r], drawn, axis=-1)


def shares(samples: np.ndarray) -> tuple[float, float]:
    """In how many samples the t test alone shows a difference, and in how many it is said. Each shift's SD is 2 %."""
    found = [judged(0.02 * one) for one in samples]
    return float(np.mean([one.row.p <= 0.05 for one in found])), float(np.mean([one.different for one in found]))


def test_correlated_blocks_raise_fewer_false_alarms_than_the_t_test():
    """Correlation 0.7, 12 blocks: 41 % by t, 19 % with the guard (400 samples: a standard error of 2.5 points)."""
    alone, said = shares(correlated(np.random.default_rng(1), 400, 12, 0.7))
    assert alone > 0.33
    assert said < 0.27


def test_a_tail_on_one_side_raises_fewer_false_alarms_than_the_t_test():
    """Lognormal noise with sigma 1.5, mean 0: 27 % by t, 14 % with the guard."""
    alone, said = shares(np.exp(np.random.default_rng(2).normal(0, 1.5, (400, 12))) - math.exp(1.125))
    assert alone > 0.21
    assert said < 0.19


def test_the_guards_cost_little_where_nothing_is_wrong():
    """A true 5 %, SD 4 %, 12 independent blocks: the t test finds it in 98 %."""
    rng = np.random.default_rng(3)
    found = [judged(0.05 + 0.04 * one) for one in rng.standard_normal((300, 12))]
    assert np.mean([one.different for one in found]) > np.mean([one.row.p <= 0.05 for one in found]) - 0.07


def test_one_disturbed_block_hides_a_difference_from_t_and_the_other_estimate_stands_beside_it():
    """A true 10 %, SD 5 %, 12 blocks, in one of which a takes twice as long."""
    drawn = math.log(1.1) + 0.05 * np.random.default_rng(4).standard_normal((300, 12))
    drawn[:, 3] -= math.log(2)
    found = [judged(one) for one in drawn]
    second = np.array([one.hodges_lehmann.low > 1 for one in found if one.hodges_lehmann])
    print(f"t test {100 * np.mean([one.row.p <= 0.05 for one in found]):.0f} %, Hodges-Lehmann {100 * second.mean():.0f} %")
    assert np.mean([one.row.p <= 0.05 for one in found]) < 0.3
    assert second.mean() > 0.8
    assert np.mean(["hangs on block 3" in one.row.reason or "hangs on single blocks" in one.row.reason for one in found]) > 0.5


@pytest.mark.slow
def test_the_rates_in_the_docs() -> None:
    """Prints the table of docs/comparison.md: 4,000 samples each (standard errors up to 0.8 points)."""
    rng = np.random.default_rng(0)
    for n in (8, 12, 24):
        kinds = {
            "independent, normal": rng.standard_normal((4_000, n)),
            **{f"correlation {r}": correlated(rng, 4_000, n, r) for r in (0.3, 0.5, 0.7)},
            "exponential": rng.standard_exponential((4_000, n)) - 1,
            "lognormal, sigma 1.5": np.exp(rng.normal(0, 1.5, (4_000, n))) - math.exp(1.125),
        }
        for name, samples in kinds.items():
            alone, said = shares(samples)
            print(f"{n} blocks, {name}: t test {100 * alone:.1f} %, said {100 * said:.1f} %")
            assert said <= alone
