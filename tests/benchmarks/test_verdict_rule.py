"""Error rates of reports and their cost: the promises of docs/explanation/statistics.md.

`pytest -n 0 -s -m slow tests/benchmarks/test_verdict_rule.py` prints the tables of that page.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.comparison import compare
from experiments.comparison.statistics import estimates
from experiments.comparison.verdicts.findings import Row
from tests.benchmarks import simulated_reports as simulated
from tests.benchmarks.simulated_reports import (
    BLOCKS,
    EFFECTS,
    NOISES,
    draw,
    false_differences,
    power,
)

REPORTS, FEW = 2_000, 200
NAMES = [f"m{at}/x_seconds" for at in range(simulated.OUTCOMES)]


def table(shifts: np.ndarray) -> pd.DataFrame:
    """Return runs of a campaign with these shifts of b against a; (outcomes, blocks)."""
    outcomes, blocks = shifts.shape
    runs = {"framework": ["a"] * blocks + ["b"] * blocks, "block": [*range(blocks)] * 2}
    values = np.exp(np.concatenate([np.zeros_like(shifts), shifts], axis=1))
    metrics = dict(zip(NAMES[:outcomes], values, strict=True))
    return pd.DataFrame({**runs, "status": "FINISHED", **metrics})


@pytest.mark.parametrize("blocks", [6, 12])
@pytest.mark.parametrize("name", ["AR(1) .7", "normal", "3 % of runs 10 SDs slow"])
def test_simulated_reports_equal_those_of_compare(name: str, blocks: int) -> None:
    """360 rows in all: some equal, some apart."""
    shifts = draw(name, 5, blocks)
    shifts += np.log1p(np.resize([0.0, 0.01, 0.05, 0.2], simulated.OUTCOMES))[:, None]
    ours = simulated.judge(shifts)
    for at, campaign in enumerate(shifts):
        rows = {row.metric: row for row in compare(table(campaign)).rows}
        ordered = [rows[metric] for metric in NAMES]
        assert [row.p_holm <= simulated.ALPHA for row in ordered] == ours.different[at].tolist()
        verdicts = [row.verdict in ("slower", "faster") for row in ordered]
        assert verdicts == ours.beyond[at].tolist()
        assert [row.equivalent for row in ordered] == ours.equivalent[at].tolist()
        assert [row.ci_low <= 1 <= row.ci_high for row in ordered] == ours.covers[at].tolist()


@pytest.mark.parametrize("seed", range(8))
def test_interval_p_and_verdict_agree(seed: int) -> None:
    """Random campaigns of any noise, effect, number of outcomes and blocks."""
    rng = np.random.default_rng(seed)
    blocks, outcomes = int(rng.integers(6, 15)), int(rng.integers(1, 13))
    noise = NOISES[list(NOISES)[seed]][0](rng, (1, 12, blocks))[0, :outcomes]
    shifts = rng.choice([0.001, 0.01, 0.05]) * noise + rng.choice([0, 0.02, 0.1], (outcomes, 1))
    comparison = compare(table(shifts), outcomes=NAMES[: max(1, outcomes // 2)])
    for finding in comparison.findings:
        row = finding.row
        assert row.ci_low is not None
        assert row.ci_high is not None
        assert row.ci_low < row.estimate < row.ci_high
        assert (row.p <= 0.05) == (row.ci_low > 1 or row.ci_high < 1)
        assert row.p_holm >= row.p
        beyond = row.ci_low > 1.03 or row.ci_high < 1 / 1.03
        assert (row.verdict in ("slower", "faster")) == (row.p_holm <= 0.05 and beyond)
        low, high = finding.mean.interval(0.9)
        assert row.equivalent == (-row.bound < low and high < row.bound)
        if row.verdict in ("equivalent", "different, within margin"):
            assert row.equivalent
        mean = estimates.trimmed_mean(finding.shifts)
        assert row.widening == pytest.approx(width(row) / (mean.high - mean.low))


def width(row: Row) -> float:
    return math.log(row.ci_high / row.ci_low)


def test_unrequested_outcomes_are_evidence() -> None:
    shifts = draw("AR(1) .7", 1, 8)[0]
    every, requested = compare(table(shifts)), compare(table(shifts), outcomes=NAMES[:1])
    isolated = compare(table(shifts[:1]))
    (row,) = requested.rows
    same = next(row for row in every.rows if row.metric == NAMES[0])
    assert (row.ci_low, row.ci_high, row.p) == (same.ci_low, same.ci_high, same.p)
    assert row.autocorrelation_weight > isolated.rows[0].autocorrelation_weight


@pytest.mark.parametrize("blocks", [3, 4, 6, 7])
def test_intervals_have_all_degrees_of_freedom(blocks: int) -> None:
    """A steady drift is the worst case; the interval is that of a mixture of t(n - 1)."""
    comparison = compare(table(np.linspace(0.1, 0.2, blocks)[None]))
    (row,) = comparison.rows
    assert comparison.findings[0].mean.fits.df == blocks - 1
    largest = comparison.findings[0].mean.fits.error[-1] * stats.t.ppf(0.975, blocks - 1)
    assert width(row) <= 2 * largest + 0.1


def test_autocorrelation_widens_intervals() -> None:
    every, single = (compare(table(draw("AR(1) .7", 3, 12)[1, :count])) for count in (12, 1))
    wide = [row for row in every.rows if row.widening >= 1.25]
    assert wide
    assert all(0.4 < row.autocorrelation < 0.9 for row in wide)
    assert all(row.autocorrelation_weight > 0.8 for row in wide)
    assert single.rows[0].autocorrelation_weight < 0.8
    clean = compare(table(draw("normal", 1, 12)[0]))
    assert max(row.widening for row in clean.rows) < 1.25


def test_one_disturbed_block_moves_no_verdict() -> None:
    """Twelve shifts of about 10 %, in one of which the other side took twice as long."""
    shifts = np.array([9.1, 10.6, 10.2, 9.5, 10.9, 9.8, 10.4, -60, 10.1, 9.9, 10.7, 9.6]) / 100
    (row,) = compare(table(shifts[None])).rows
    assert (row.verdict, row.slow_runs_a, row.slow_runs_b) == ("slower", 0, 0)
    assert row.estimate == pytest.approx(math.exp(0.1), abs=0.005)


@pytest.mark.parametrize("name", NOISES)
def test_false_differences_in_the_small(name: str) -> None:
    """200 reports of 8 and of 12 blocks; three standard errors are added to what is promised."""
    _, most = NOISES[name]
    if most is not None:
        for blocks in (8, 12):
            allowed = most + 3 * math.sqrt(most * (1 - most) / FEW)
            assert false_differences(name, FEW, blocks) <= allowed


@pytest.mark.parametrize("effect", EFFECTS)
def test_power_in_the_small(effect: str) -> None:
    """200 reports of 8 blocks; two standard errors of a share of 90 % are 4 points."""
    shares = power(*EFFECTS[effect], FEW, 8)
    assert shares.all_differ >= 0.95
    assert shares.one_differs >= 0.85 - 0.04
    assert shares.lost <= 0.10 + 0.04


@pytest.mark.parametrize(
    ("name", "blocks", "shown", "equal"),
    [
        ("normal", 12, 0.62, 0.90),
        ("3 % of runs 10 SDs slow", 20, 0.85, 0.92),
        ("3 % of runs 10 SDs slow", 43, 0.98, 0.98),
        ("10 % of runs 5 SDs slow", 20, 0.70, 0.82),
    ],
)
def test_slow_runs_hide_no_difference(name: str, blocks: int, shown: float, equal: float) -> None:
    """2,000 reports of one outcome: 5 % slower found, and equality shown, where it is true.

    At the margin, of 16,000 reports: a standard error of .2 points.
    """
    noise = draw(name, REPORTS, blocks, 1)
    slower, same = simulated.judge(noise + math.log(1.05)), simulated.judge(noise)
    shares = float(slower.beyond.mean()), float(same.equivalent.mean())
    print(f"\n| {name} | {blocks} | {100 * shares[0]:.0f} | {100 * shares[1]:.0f} |")
    assert shares[0] >= shown
    assert shares[1] >= equal
    edge = simulated.judge(draw(name, 8 * REPORTS, blocks, 1) + simulated.MARGIN)
    assert edge.equivalent.mean() <= 0.055


@pytest.mark.slow
def test_false_differences() -> None:
    """2,000 reports each. Two standard errors refute a promise: 1 point at 6 %, 1.6 at 15 %."""
    print("\n| noise | t tests: 6, 8, 12, 20, 43 blocks | 12 outcomes | one outcome | coverage |")
    missed = []
    for name in NOISES:
        shares = [false_differences(name, REPORTS, blocks) for blocks in BLOCKS]
        t = simulated.judge_by_t
        by_t = [false_differences(name, REPORTS, blocks, rule=t) for blocks in BLOCKS]
        single = [false_differences(name, 2 * REPORTS, blocks, 1) for blocks in BLOCKS]
        covers = [simulated.judge(draw(name, 200, blocks)).covers.mean() for blocks in BLOCKS]
        cells = [f"{100 * share:.1f}" for share in (*by_t, *shares, *single, *covers)]
        print(f"| {name} | {' | '.join(cells)} |")
        _, most = NOISES[name]
        missed += [
            (name, blocks, share)
            for blocks, share in zip(BLOCKS, shares, strict=True)
            if most is not None and share > most + 2 * math.sqrt(most * (1 - most) / REPORTS)
        ]
    assert not missed


@pytest.mark.slow
def test_power() -> None:
    """2,000 reports of 12 outcomes in normal noise, and 4,000 of one."""
    print("\n| effect | blocks | all | one of 12 | its t test | lost | best alone | one outcome |")
    for name, effect in EFFECTS.items():
        for blocks in BLOCKS:
            ours, single = power(*effect, REPORTS, blocks), power(*effect, 2 * REPORTS, blocks, 1)
            best = simulated.best_power(*effect, blocks, simulated.ALPHA / 12)
            shares = (ours.all_differ, ours.one_differs, ours.one_differs_by_t, ours.lost)
            cells = [f"{100 * share:.1f}" for share in (*shares, best, single.all_differ)]
            print(f"| {name} | {blocks} | {' | '.join(cells)} |")
            assert ours.all_differ >= 0.95
            assert ours.one_differs >= 0.85 or blocks == 6
            assert ours.lost <= 0.10
    for blocks in BLOCKS:
        ours = power(*EFFECTS["20 %, SD 5 %"], REPORTS, blocks, correlation=0.9)
        shares = (ours.all_differ, ours.one_differs, ours.one_differs_by_t, ours.lost)
        cells = [f"{100 * share:.1f}" for share in shares]
        print(f"| correlated .9 | {blocks} | {' | '.join(cells)} |")


def test_few_outcomes_cost_power() -> None:
    """An effect that a t test shows in 80 %, among so many measured outcomes; 1,000 reports."""
    shares = {
        outcomes: [simulated.power_where_t_has_80(1_000, blocks, outcomes) for blocks in (6, 12)]
        for outcomes in (1, 4, 12)  # measured, of which one is requested
    }
    print("\n".join(f"{outcomes}: {power}" for outcomes, power in shares.items()))
    assert shares[1] < shares[4] < shares[12]
    assert shares[12][1] > 0.72
