"""Calibration: its simulations are right, its promises hold in the small, and can break."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from experiments.calibration import simulation
from experiments.calibration.simulation import MAIN, SCENARIOS, Noise, calibrate, meets, simulate
from experiments.comparison import compare
from experiments.comparison.runs import order
from experiments.comparison.statistics.autocorrelation import MeanDistribution
from experiments.comparison.statistics.power import power_of_t

STILL = Noise("still", run_sd=0.0)
BY_NAME = {noise.name: noise for noise in SCENARIOS}
SPREAD = BY_NAME["run-to-run spread 3 %"]


def broken(rates: list[simulation.Rates]) -> set[str]:
    """Return the rates whose promises do not hold."""
    return {claim.rate for claim in meets(rates) if not claim.holds}


@pytest.mark.parametrize("noise", SCENARIOS, ids=lambda noise: noise.name)
def test_simulated_campaigns_have_all_runs_and_known_metrics(noise):
    table = simulate(noise, 7, 1.0, np.random.default_rng(0))
    cells = sorted(zip(table["framework"], table["block"], strict=True))
    assert cells == [(side, block) for side in "ab" for block in range(1, 8)]
    comparison = compare(table)
    metrics = {row.metric for row in comparison.rows}
    assert (len(metrics), MAIN in metrics) == (noise.metrics, True)
    assert {row.n_blocks for row in comparison.rows} == {7}
    assert all(finding.outcome.label != finding.row.metric for finding in comparison.findings)


def test_campaigns_without_noise_have_the_true_ratio():
    comparison = compare(simulate(STILL, 12, 1.05, np.random.default_rng(2)), baseline="a")
    assert [row.estimate for row in comparison.rows] == pytest.approx([1.05] * 12)


def test_rates_follow_from_the_seed():
    noise = [replace(SPREAD, metrics=2)]
    first, again, other = (calibrate(noise, campaigns=2, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_promises_hold_in_the_small():
    """20 campaigns: at a rate of 5 %, 5 or more alarms come once in 400.

    The 12 intervals of one report count as two or three.
    """
    (rates,) = calibrate([SPREAD], campaigns=20)
    value = {name: measured.value for name, measured in rates.shares.items()}
    assert 0.88 <= value["coverage"] <= 0.995
    assert value["false_verdicts"] <= value["false_alarms"] <= 4 / 20
    assert value["false_alarm_rows"] <= value["false_alarms"]
    # one primary metric is tested as if it were alone
    assert value["power_in_report"] <= value["primary_power"] <= value["power"]
    assert max(value["primary_false_alarms"], value["exploratory_false_alarms"]) <= 4 / 20
    assert not broken([rates])


def test_power_is_that_of_the_t_test():
    """100 campaigns leave a standard error of 4 points."""
    noise, shown = Noise("", run_sd=0.04, metrics=1), 0
    for seeds in np.random.SeedSequence(0).spawn(100):
        table = simulate(noise, 12, 1.05, np.random.default_rng(seeds))
        (row,) = compare(table, baseline="a", outcomes=[MAIN]).rows
        shown += row.p <= 0.05
    # the only outcome of its campaign: nothing else shows that blocks are independent
    expected = power_of_t(math.log(1.05), 0.04 * math.sqrt(2), 12)
    assert expected - 0.2 <= shown / 100 <= expected + 0.12


@pytest.mark.slow
def test_missing_holm_correction_breaks_the_promise(monkeypatch):
    """Twelve unrelated tests at 5 % raise an alarm in 46 % of reports."""
    monkeypatch.setattr("experiments.comparison.statistics.significance.holm", list)
    rates = calibrate([BY_NAME["12 unrelated metrics"]], campaigns=20)
    assert "false_alarms" in broken(rates)


@pytest.mark.slow
def test_narrow_intervals_break_the_promise(monkeypatch):
    """Intervals of 66 %, about a standard error to either side, pass for those of 95 %."""
    interval = MeanDistribution.interval
    monkeypatch.setattr(MeanDistribution, "interval", lambda mean, _: interval(mean, 0.66))
    rates = calibrate([BY_NAME["12 unrelated metrics"]], campaigns=10)
    assert "coverage" in broken(rates)


@pytest.mark.slow
def test_unshuffled_campaigns_break_the_promise(monkeypatch):
    noise = replace(BY_NAME["drift 5 %"], metrics=4)
    table = simulate(noise, 12, 1.0, np.random.default_rng(1), shuffled=False)
    rows = compare(table, baseline="a").rows
    assert {row.verdict for row in rows} == {"not comparable"}  # by the order in time
    monkeypatch.setattr(order.Order, "refused", "")
    shuffle = simulation.simulate
    monkeypatch.setattr(simulation, "simulate", lambda *args: shuffle(*args, shuffled=False))
    rates = calibrate([noise], campaigns=15)
    assert rates[0].shares["false_alarms"].value > 0.8
    assert "false_alarms" in broken(rates)


@pytest.mark.slow
def test_tests_that_never_reject_break_the_promise(monkeypatch):
    monkeypatch.setattr(MeanDistribution, "p", lambda _: np.ones(()))
    claims = broken(calibrate([replace(BY_NAME["quiet"], metrics=2)], campaigns=12))
    assert "false_alarms" not in claims
    assert "power" in claims


def test_interval_of_a_share_is_wilsons():
    """Newcombe 1998, table I: 15 of 148 gives .0624 to .1605."""
    measured = simulation.share([1.0] * 15 + [0.0] * 133)
    expected = (15 / 148, 0.0624, 0.1605)
    assert (measured.value, measured.low, measured.high) == pytest.approx(expected, abs=5e-5)
    assert simulation.share([0.0] * 40).low == 0
    assert 0 < simulation.share([0.0] * 40).high < 0.1
    assert simulation.share([1.0] * 40).high == pytest.approx(1)


def test_broken_promises_are_reported():
    rates = calibrate([replace(STILL, metrics=1)], campaigns=2)
    shares = {**rates[0].shares, "false_alarms": simulation.Proportion(0.4, 0.3, 0.5)}
    text = simulation.as_markdown([replace(rates[0], shares=shares)])
    assert "| ≤ 6 % | 40.0 % (30.0–50.0) | **does not hold** |" in text
