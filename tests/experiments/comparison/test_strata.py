"""Summaries across strata: published values, invariances, and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.comparison import compare
from experiments.comparison.report import writing
from experiments.comparison.statistics.significance import random_effects
from experiments.comparison.verdicts.decision import Decision, NoEstimate, Withheld
from experiments.comparison.verdicts.findings import Comparison, Finding
from tests.experiments.comparison.campaigns import BLEU, LOSS, STEP, frame

# Colditz et al. 1994: tuberculosis in 13 trials, cases and others, vaccinated and not
# (`dat.bcg` of R's metafor).
BCG = np.array(
    [
        [4, 119, 11, 128],
        [6, 300, 29, 274],
        [3, 228, 11, 209],
        [62, 13536, 248, 12619],
        [33, 5036, 47, 5761],
        [180, 1361, 372, 1079],
        [8, 2537, 10, 619],
        [505, 87886, 499, 87892],
        [29, 7470, 45, 7232],
        [17, 1699, 65, 1600],
        [186, 50448, 141, 27197],
        [5, 2493, 3, 2338],
        [27, 16886, 29, 17825],
    ],
    dtype=float,
)


def machines(factors: Sequence[float], blocks: int = 8, spread: float = 0.005) -> pd.DataFrame:
    """Return a campaign on each machine, with its ratio of a step's time, by two teams in turn."""
    tables = []
    for at, factor in enumerate(factors):
        ratio, campaign = {"tensorflow": factor}, f"c{at}"
        table = frame(blocks=blocks, seed=at, factors=ratio, campaign=campaign, spread=spread)
        tables.append(table.assign(machine=f"m{at}", team=("red", "blue")[at % 2]))
    return pd.concat(tables)


def summarise(table: pd.DataFrame, **options: Any) -> Finding:
    """Return the summary of a step's time over machines."""
    comparison = compare(table, strata=["machine"], **options)
    return finding(comparison)


def finding(comparison: Comparison, metric: str = STEP) -> Finding:
    return next(summary for summary in comparison.summaries if summary.row.metric == metric)


# ---- the arithmetic


def test_bcg_trials_as_published():
    """Viechtbauer 2010: Q = 152.2330, 12 df, I² 92.12 %, Paule and Mandel's tau² 0.3181."""
    a, b, c, d = BCG.T
    values = np.log(a / (a + b) / (c / (c + d)))
    variances = 1 / a - 1 / (a + b) + 1 / c - 1 / (c + d)
    combined = random_effects(values, variances)
    assert combined.tau**2 == pytest.approx(0.3181, abs=5e-5)
    assert combined.i_squared_percent == pytest.approx(92.12, abs=5e-3)
    assert combined.q_p == pytest.approx(stats.chi2.sf(152.2330, 12), rel=1e-3)


def test_strata_that_do_not_vary_count_alike():
    same = random_effects([0.1, 0.1, 0.1], [0.0, 0.0, 0.0])
    assert (same.value, same.low, same.high) == (pytest.approx(0.1),) * 3
    assert (same.tau, same.p, same.tost_p(1.0)) == (0, None, None)
    apart = random_effects([0.1, 0.2, 0.3], [0.0, 0.0, 0.0])
    half = stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3)
    assert (apart.low, apart.high, apart.tau) == pytest.approx((0.2 - half, 0.2 + half, 0.1))
    assert apart.i_squared_percent is apart.q_p is None
    mixed = random_effects([0.1, 0.2, 0.3], [0.0, 0.02, 0.01])
    assert (mixed.value, mixed.tau) == (pytest.approx(0.2), 0)


@pytest.mark.parametrize(("count", "tau"), [(3, 0.02), (5, 0.01), (10, 0.005)])
def test_prediction_interval_holds_the_next_stratum(count, tau):
    """600 draws of 6 to 12 blocks a stratum and unlike noise.

    A share of 92.5 % or less comes once in 300, if it is 95 %. With Higgins, Thompson and
    Spiegelhalter's interval it is 87 to 92 % from five strata on.
    """
    rng, covered = np.random.default_rng(11), 0
    for _ in range(600):
        strata = [
            rng.normal(rng.normal(0, tau), rng.choice([0.01, 0.03, 0.05]), rng.choice([6, 8, 12]))
            for _ in range(count)
        ]
        variances = [blocks.var(ddof=1) / len(blocks) for blocks in strata]
        combined = random_effects([blocks.mean() for blocks in strata], variances)
        covered += combined.prediction_low <= rng.normal(0, tau) <= combined.prediction_high
    assert covered / 600 > 0.925


# ---- in a comparison


def test_strata_are_summarised_and_not_pooled():
    """A machine with a hundred times the values and more blocks would turn a pooled ratio."""
    fast, slow = machines([1.2, 1.25]), machines([1, 1, 1.22], blocks=24)
    slow = slow[slow["machine"] == "m2"].assign(**{STEP: lambda table: 100 * table[STEP]})
    comparison = compare(pd.concat([fast, slow]), strata=["machine"], baseline="pytorch")
    rows = [row for row in comparison.rows if row.metric == STEP]
    strata = ("machine=m0", "machine=m1", "machine=m2")
    assert [(row.stratum, row.n_blocks) for row in rows] == list(
        zip(strata, (8, 8, 24), strict=True)
    )
    summary = finding(comparison)
    assert (summary.across.names, summary.across.left_out, summary.row.n_blocks) == (strata, (), 8)
    assert summary.row.estimate == pytest.approx(1.223, abs=0.01)
    assert summary.row.ci_low < 1.2 < summary.row.ci_high < summary.across.prediction_high
    assert (summary.row.verdict, summary.good) == ("slower", False)


def test_summary_is_that_of_the_rows():
    comparison = compare(machines([1.1, 1.2, 1.3]), strata=["machine"])
    rows = [row for row in comparison.rows if row.metric == STEP]
    half = [
        math.log(row.ci_high / row.ci_low)
        / 2
        / stats.t.ppf(0.975, row.n_blocks - 2 * (row.n_blocks // 8) - 1)
        for row in rows
    ]
    expected = random_effects([math.log(row.estimate) for row in rows], np.square(half))
    row, across = finding(comparison).row, finding(comparison).across
    ratios = tuple(map(math.exp, (expected.value, expected.low, expected.high)))
    assert (row.estimate, row.ci_low, row.ci_high) == pytest.approx(ratios)
    assert (across.tau, row.p) == pytest.approx((expected.tau, expected.p))
    assert across.i_squared_percent == pytest.approx(expected.i_squared_percent)
    assert row.p_holm >= row.p
    published = next(
        summary for summary in writing.as_json(comparison)["summaries"] if summary["metric"] == STEP
    )
    assert (published["low"], published["n_strata"]) == (row.ci_low, 3)


@pytest.mark.parametrize(
    ("factors", "verdict", "decision"),
    [
        ((1.2, 1.3, 1.25), "slower", Decision.DIFFERENT),
        ((0.8, 0.82, 0.85), "faster", Decision.DIFFERENT),
        ((1.0, 1.001, 0.999), "equivalent", Decision.EQUIVALENT),
        ((1.01, 1.011, 1.012, 1.01), "different, within margin", Decision.WITHIN_MARGIN),
        ((0.8, 1.0, 1.25), "inconclusive", Decision.OPEN),
        ((1.2, 1.3), "inconclusive", Decision.TOO_FEW),
    ],
)
def test_verdicts_follow_the_rules_of_a_row(factors, verdict, decision):
    summary = summarise(machines(factors, spread=0.002), outcomes=[STEP])
    assert (summary.row.verdict, summary.decision) == (verdict, decision)
    too_few = NoEstimate.TOO_FEW_STRATA if decision is Decision.TOO_FEW else ""
    assert summary.row.no_estimate == too_few


def test_stratum_of_few_blocks_allows_no_verdict():
    """Two blocks a stratum give an interval that covers 91 %, not 95 %."""
    table = machines([1.2, 1.25, 1.3])
    summary = summarise(table[(table["machine"] != "m1") | (table["block"] < 5)])
    assert (summary.withheld, summary.row.n_blocks) == (Withheld.TOO_FEW_BLOCKS, 5)
    assert "machine=m1 has 5" in summary.row.reason


def test_stratum_without_a_variance_is_left_out():
    table = machines([1.2, 1.25, 1.3, 1.2])
    table = table[(table["machine"] != "m1") | (table["block"] < 1)]
    summary = summarise(table, outcomes=[STEP])
    assert (len(summary.across.names), summary.across.left_out) == (3, ("machine=m1",))
    assert summary.row.verdict == "slower"
    assert "machine=m1" in summary.row.reason


def test_constant_outcomes_are_deterministic_across_strata():
    table = machines([1.1, 1.2, 1.3])
    summaries = compare(table, strata=["machine"], outcomes=[LOSS, BLEU]).summaries
    rows = [(summary.row.estimate, summary.row.verdict, summary.row.p) for summary in summaries]
    assert rows == [(0.0, "deterministic", None)] * 2
    assert all(summary.identical for summary in summaries)


def test_swapping_sides_inverts_the_summary():
    table = machines([1.2, 1.25, 1.3])
    forth, back = (summarise(table, baseline=level) for level in ("pytorch", "tensorflow"))
    assert forth.row.estimate * back.row.estimate == pytest.approx(1)
    assert forth.row.ci_low * back.row.ci_high == pytest.approx(1)
    assert forth.across.prediction_low * back.across.prediction_high == pytest.approx(1)
    assert (forth.row.verdict, back.row.verdict) == ("slower", "faster")
    assert (forth.across.tau, forth.row.p) == pytest.approx((back.across.tau, back.row.p))


def test_effect_of_a_campaign_on_one_side_raises_no_false_alarms():
    """Four campaigns of eight blocks, SD of a run 0.5 %, of a campaign's effect on one side 1 %.

    Nothing differs. Of 30 summaries at 5 %, 6 or more are wrong once in 300; with all 32 blocks in
    one t test two of three are.
    """
    rng, wrong, pooled = np.random.default_rng(8), 0, 0
    for _ in range(30):
        tables = []
        for at, factor in enumerate(np.exp(rng.normal(0, 0.01, 4))):
            ratio, seed = {"tensorflow": factor}, int(rng.integers(2**32))
            tables.append(frame(seed=seed, factors=ratio, campaign=f"c{at}", spread=0.005))
        comparison = compare(pd.concat(tables), outcomes=[STEP])
        wrong += comparison.summaries[0].different
        shifts = np.concatenate([row.shifts for row in comparison.findings])
        pooled += stats.ttest_1samp(shifts, 0).pvalue < 0.05
    print(f"of 30 without a difference: {wrong} summaries wrong, {pooled} t tests over all blocks")
    assert wrong < 6
    assert pooled > 10
