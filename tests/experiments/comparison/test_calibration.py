"""Calibration: that it simulates what it says, that its promises hold in the small, and above all that they can break."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from experiments.calibration import simulation as calibration
from experiments.calibration.simulation import (
    MAIN,
    METRICS,
    SCENARIOS,
    Noise,
    calibrate,
    meets,
    simulate,
)
from experiments.comparison import compare
from experiments.comparison.verdicts.findings import ALPHA
from tracking.errors import WrongCall

STILL = Noise("still", run_sd=0.0, step_sd=0.0)
BY_NAME = {noise.name: noise for noise in SCENARIOS}


def lag_one(series: np.ndarray) -> float:
    """Autocorrelation at lag one, the mean taken as known: every series has mean 0."""
    return float((series[..., 1:] * series[..., :-1]).mean() / (series**2).mean())


def verdicts(rates: list[calibration.Rates]) -> dict[str, bool]:
    return {one.claim: one.holds for one in meets(rates)}


# ---- what is simulated


@pytest.mark.parametrize("noise", SCENARIOS, ids=lambda noise: noise.name)
def test_a_campaign_has_every_run_and_twelve_known_metrics(noise):
    table = simulate(replace(noise, blocks=None), blocks=7, rng=np.random.default_rng(0))
    assert sorted(zip(table["framework"], table["block"], strict=True)) == [
        (side, at) for side in "ab" for at in range(1, 8)
    ]
    comparison = compare(table)
    assert len({row.metric for row in comparison.rows}) == (noise.metrics or 12)
    blocks = Counter[str]()
    for row in comparison.rows:  # campaigns are strata, each with blocks of its own
        blocks[row.metric] += row.n_blocks
    assert set(blocks.values()) == {7}
    assert all(finding.outcome.label != finding.row.metric for finding in comparison.findings)
    assert MAIN in {row.metric for row in comparison.rows}


def test_every_block_is_in_an_order_of_its_own():
    table = simulate(STILL, blocks=40, rng=np.random.default_rng(1)).sort_values(
        ["block", "order_in_block"]
    )
    first = table["framework"].to_numpy()[::2]
    assert 8 <= (first == "a").sum() <= 32  # of 40 fair coins; beyond with a chance of 1 in 10,000


@pytest.mark.parametrize(
    "noise", [STILL, replace(STILL, unrelated=True)], ids=["related", "unrelated"]
)
def test_without_noise_the_true_ratio_comes_out(noise):
    comparison = compare(simulate(noise, ratio=1.05, rng=np.random.default_rng(2)), baseline="a")
    for row in comparison.rows:
        assert row.estimate == pytest.approx(
            1 / 1.05 if row.metric.endswith("per_second") else 1.05
        )


@pytest.mark.parametrize("tails", ["normal", "lognormal", "student-t", "bimodal"])
def test_every_shape_has_mean_zero_and_the_spread_that_is_asked_for(tails):
    """200,000 values; the heaviest, t with 3 degrees of freedom, has no fourth moment, hence the wide tolerance of its SD."""
    drawn = calibration._standard(tails, (200_000,), np.random.default_rng(3))
    assert drawn.mean() == pytest.approx(0, abs=0.02)
    assert drawn.std() == pytest.approx(1, abs=0.1)


def test_shapes_are_what_they_are_called():
    rng = np.random.default_rng(4)
    normal, skewed, heavy, two = (
        calibration._standard(tails, (20_000,), rng)
        for tails in ("normal", "lognormal", "student-t", "bimodal")
    )
    assert abs(stats.skew(normal)) < 0.1 < 1 < stats.skew(skewed)
    assert stats.kurtosis(heavy) > 2 > 0.2 > abs(stats.kurtosis(normal))
    assert (np.abs(two) < 0.3).mean() < 0.03 < (np.abs(normal) < 0.3).mean()


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_steps_remember_the_step_before(rho):
    steps = calibration._steps(
        Noise("x", step_autocorrelation=rho), (4_000, 100), np.random.default_rng(5)
    )
    assert lag_one(steps) == pytest.approx(rho, abs=0.02)
    assert steps[:, 0].std() == pytest.approx(1, abs=0.05)  # from the first step on: no settling
    assert steps[:, -1].std() == pytest.approx(1, abs=0.05)


def test_drift_goes_with_the_order_of_the_runs():
    table = simulate(replace(STILL, drift=0.05), rng=np.random.default_rng(6)).sort_values(
        "start_ms"
    )
    values = table[MAIN].to_numpy()
    assert values[-1] / values[0] == pytest.approx(1.05)
    assert (np.diff(values) > 0).all()


def test_phases_of_a_run_share_what_they_are_told_to():
    """The correlation of 1,200 pairs has a standard error of at most 0.03."""
    for share in (0.0, 0.5, 0.9):
        noise = Noise("x", run_sd=0.05, step_sd=0.0, metric_correlation=share)
        logs = np.log(
            simulate(noise, blocks=600, rng=np.random.default_rng(7))[
                [MAIN, "power/watts_mean"]
            ].to_numpy()
        )
        assert np.corrcoef(logs.T)[0, 1] == pytest.approx(share, abs=0.08)
        assert logs.std(axis=0) == pytest.approx([0.05, 0.05], rel=0.08)


@pytest.mark.parametrize(
    ("call", "message"),
    [({"metrics": 13}, "metrics=13"), ({"metrics": 0}, "1 to 12"), ({"steps": 50}, "p95")],
)
def test_what_cannot_be_simulated_is_refused(call, message):
    with pytest.raises(WrongCall, match=message):
        simulate(STILL, rng=np.random.default_rng(0), **call)


# ---- what breaks the exchange of sides


def differences(noise: Noise, blocks: int) -> np.ndarray:
    """Log-ratios of the first three metrics, a row a block."""
    table = simulate(noise, blocks=blocks, metrics=3, rng=np.random.default_rng(9)).sort_values(
        "block"
    )
    columns = [
        name for name in table.columns if name == MAIN or name.startswith("inference/batch_")
    ]
    logs = {
        side: np.log(rows[columns].to_numpy(dtype=float))
        for side, rows in table.groupby("framework")
    }
    return logs["b"] - logs["a"]


ONE_SIDED = replace(STILL, unrelated=True, metric_correlation=0.0)


def test_what_befalls_one_side_has_its_own_shape_memory_and_spread():
    """900 differences: a skewness of 3 and a correlation of 0.7 are far from what symmetric, forgetful noise would show."""
    skewed = differences(replace(ONE_SIDED, side_sd=0.03, side_tails="lognormal"), 300)
    assert skewed.std() == pytest.approx(0.03, rel=0.15)
    assert stats.skew(skewed.ravel()) > 1.5
    remembering = differences(replace(ONE_SIDED, side_sd=0.03, side_autocorrelation=0.7), 300)
    assert lag_one(remembering.T) == pytest.approx(0.7, abs=0.08)


def test_an_outlier_slows_one_block_of_b_alone():
    found = differences(replace(ONE_SIDED, outlier=2.0), 12)
    assert sorted(np.round(np.exp(found[:, 0]), 6)) == [1.0] * 11 + [2.0]


def test_campaigns_have_names_and_shifts_of_their_own():
    noise = replace(ONE_SIDED, campaigns=3, campaign_sd=0.01)
    table = simulate(noise, blocks=12, metrics=3, rng=np.random.default_rng(9))
    assert {len(rows) for _, rows in table.groupby("campaign")} == {8}
    assert table["campaign"].nunique() == 3
    assert len(np.unique(np.round(differences(noise, 12)[:, 0], 9))) == 3


def test_a_coarse_clock_gives_ties():
    spread = replace(ONE_SIDED, run_sd=0.03, clock=0.05)
    ratios = np.exp(differences(spread, 40))
    assert len(np.unique(np.round(ratios, 9))) < 30  # of 120
    assert len(np.unique(np.round(np.exp(differences(replace(spread, clock=0.0), 40)), 9))) == 120


@pytest.mark.parametrize(
    ("shape", "least"), [({"side_tails": "lognormal"}, 0.1), ({"side_autocorrelation": 0.7}, 0.2)]
)
def test_one_sided_scenarios_are_harsh(shape, least):
    """A paired t test errs in 12 % (skew) and 40 % (memory) of rows, 12 of them in 35 and 85 % of reports."""
    rng, wrong = np.random.default_rng(10), []
    noise = next(
        one
        for one in SCENARIOS
        if one.side_sd and all(getattr(one, name) == value for name, value in shape.items())
    )
    cells = calibration.design.blocks([["a", "b"]], 12, rng)
    for _ in range(60):
        shifts = calibration._on_one_side(noise, cells, 12, rng)
        on_b = shifts[[cell.treatment == "b" for cell in cells]]
        ordered = on_b + noise.run_sd * math.sqrt(2) * rng.standard_normal(on_b.shape)
        wrong.append(stats.ttest_1samp(ordered, 0).pvalue <= 0.05)
    assert np.mean(wrong) > least - 0.03


# ---- the rates


def test_the_same_seed_gives_the_same_rates_and_another_seed_others():
    noise = [BY_NAME["run-to-run spread 3 %"]]
    first, again, other = (
        calibrate(noise, campaigns=4, metrics=3, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.slow
def test_workers_change_nothing_but_the_time():
    noise = [BY_NAME["quiet"], BY_NAME["heavy tails"]]
    assert calibrate(noise, campaigns=3, metrics=2, workers=2) == calibrate(
        noise, campaigns=3, metrics=2
    )


def test_progress_is_told_campaign_by_campaign():
    seen: list[tuple[int, int]] = []
    calibrate(
        [STILL, BY_NAME["quiet"]],
        campaigns=2,
        metrics=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_promises_hold_in_the_small():
    """20 campaigns: at a rate of 5 %, 5 or more alarms come once in 400; the 12 intervals of one report count as two or three."""
    (found,) = calibrate([BY_NAME["run-to-run spread 3 %"]], campaigns=20)
    assert found.false_alarms.value <= 4 / 20
    assert 0.88 <= found.coverage.value <= 0.995
    assert found.power.value >= 0.8
    assert found.power_in_report.value <= found.power.value
    assert found.false_verdicts.value <= found.false_alarms.value
    assert found.false_alarm_rows.value <= found.false_alarms.value
    # one primary metric is tested as if it were alone
    assert found.power_in_report.value <= found.primary_power.value <= found.power.value
    assert max(found.primary_false_alarms.value, found.exploratory_false_alarms.value) <= 4 / 20
    assert all(verdicts([found]).values())


def test_errors_at_the_margin_are_promised_row_by_row_and_told_by_report_too():
    """15 reports of 12 unrelated rows: 5 and 2.5 % of rows; of reports 1 - .95¹² = 46 % and 26 %."""
    (found,) = calibrate([BY_NAME["12 unrelated metrics"]], campaigns=15)
    assert 0.01 <= found.wrong_equivalent_rows.value <= 0.09
    assert found.wrong_beyond_rows.value <= 0.06
    assert found.wrong_equivalent.value >= 0.2
    told = [one.claim for one in meets([found])]
    assert "12 unrelated metrics: rows at the margin called equivalent" in told
    assert not any("reports at the margin" in claim for claim in told)


def test_one_sided_noise_is_promised_no_power_and_no_intervals():
    rates = calibrate([BY_NAME["differences with memory"]], campaigns=2, metrics=2)
    assert {one.claim for one in meets(rates)} == {
        "differences with memory: any false alarm among 2 metrics",
        "differences with memory: a false alarm of a primary metric",
        "differences with memory: any false alarm of exploratory metrics",
    }


def test_the_simulation_can_be_run_alone(capsys):
    from tests.benchmarks.calibration import main

    code = main(["--campaigns", "2", "--scenario", "1 unrelated metric"])
    told = capsys.readouterr().out
    assert "2 simulated campaigns a scenario, 1 metrics, 12 blocks" in told
    assert (code == 0) == ("**does not hold**" not in told)
    with pytest.raises(SystemExit) as refused:
        main(["--campaigns", "0"])
    assert refused.value.code == 2


def test_power_is_what_the_t_test_promises():
    """Without noise in steps a log-ratio's SD is √2 times that of a run; 25 campaigns leave a standard error of 8 points."""
    from experiments.comparison.statistics.power import power_of_t

    noise = Noise("x", run_sd=0.04, step_sd=0.0)
    (found,) = calibrate([noise], campaigns=25, metrics=1)
    expected = power_of_t(math.log(1.05), 0.04 * math.sqrt(2), 12)
    assert expected == pytest.approx(0.78, abs=0.02)
    assert found.power.value == pytest.approx(expected, abs=0.25)
    # alone in its report, whose interval is wider: nothing else shows that blocks are independent
    assert found.power.value - 0.15 <= found.power_in_report.value <= found.power.value


def _alarms(noise: Noise) -> tuple[float, float]:
    """Of 25 campaigns: false alarms of the papers' test on steps, and of runs that are not in random order."""
    rng = np.random.default_rng(13)
    steps = [
        calibration._papers_way(calibration._campaign(noise, 12, 1, 100, 1.0, rng))
        for _ in range(25)
    ]
    order = [
        calibration._in_wrong_order(
            calibration._campaign(noise, 12, 1, 100, 1.0, rng, shuffled=False)
        )
        for _ in range(25)
    ]
    return float(np.mean(steps)), float(np.mean(order))


def test_the_papers_ways_raise_false_alarms():
    """Steps of one run a side, with a spread between runs; and all of a before all of b, on a machine that drifts."""
    assert _alarms(BY_NAME["run-to-run spread 3 %"])[0] > 0.6
    assert _alarms(BY_NAME["drift 5 %"])[1] > 0.9
    # neither is wrong where runs do not differ and nothing drifts: of 25 at 5 %, 6 or more once in 800
    assert max(_alarms(Noise("x", run_sd=0.0))) < 6 / 25


# ---- that a defect is seen

SIMULATED = calibration._campaign


def _steps_as_replicates(noise, _blocks, metrics, steps, ratio, rng, shuffled=True):
    """The planted defect: one run a side, each of whose steps passes for a block."""
    runs = SIMULATED(noise, 1, metrics, steps, ratio, rng, shuffled)
    found = []
    for run in runs:
        for at, seconds in enumerate(run.training.steady[0][:24], start=1):
            cell = replace(run.cell, block=at)
            found.append(calibration._Run(cell, run.training, {MAIN: seconds}))
    return found


@pytest.mark.slow
def test_steps_passed_off_as_replicates_break_the_promise(monkeypatch):
    monkeypatch.setattr(calibration, "_campaign", _steps_as_replicates)
    rates = calibrate([BY_NAME["run-to-run spread 3 %"]], campaigns=25)
    assert rates[0].false_alarms.low > 0.3
    assert not any(
        holds
        for claim, holds in verdicts(rates).items()
        if "false alarm" in claim or "intervals" in claim
    )


@pytest.mark.slow
def test_a_report_without_holms_correction_breaks_the_promise(monkeypatch):
    """Twelve unrelated tests at 5 % raise an alarm in 46 % of reports."""
    monkeypatch.setattr("experiments.comparison.statistics.significance.holm", list)
    rates = calibrate([BY_NAME["12 unrelated metrics"]], campaigns=20)
    assert not verdicts(rates)["12 unrelated metrics: any false alarm among 12 metrics"]


@pytest.mark.slow
def test_intervals_that_are_too_narrow_break_the_promise(monkeypatch):
    """One standard error to either side holds the true ratio in 66 % of cases."""
    monkeypatch.setattr("experiments.comparison.statistics.estimates.t_quantile", lambda *_: 1.0)
    rates = calibrate([BY_NAME["12 unrelated metrics"]], campaigns=10)
    assert not verdicts(rates)["12 unrelated metrics: 95 % intervals hold the true ratio"]


@pytest.mark.slow
def test_a_campaign_that_is_not_shuffled_breaks_the_promise(monkeypatch):
    monkeypatch.setattr(
        calibration.design, "blocks", lambda sides, count, _rng: _one_after_another(sides, count)
    )
    rates = calibrate([BY_NAME["drift 5 %"]], campaigns=15, metrics=4)
    assert rates[0].false_alarms.value > 0.8
    assert not verdicts(rates)["drift 5 %: any false alarm among 4 metrics"]


def _one_after_another(sides, count):
    return [
        calibration.design.Cell(side, block, 0) for side in sides for block in range(1, count + 1)
    ]


@pytest.mark.slow
def test_a_tool_that_never_sees_anything_breaks_the_promise(monkeypatch):
    unseeing = calibration.significance.Tested(0, 1.0)
    monkeypatch.setattr(
        "experiments.comparison.statistics.significance.paired_t", lambda _: unseeing
    )
    found = verdicts(calibrate([BY_NAME["quiet"]], campaigns=12, metrics=2))
    assert found["quiet: any false alarm among 2 metrics"]
    assert not found["quiet: a difference of 5 % is shown, declared alone"]


# ---- shares, and how they are told


def test_the_interval_of_a_share_is_wilsons():
    """Newcombe 1998, table I: 15 of 148 gives .0624 to .1605."""
    found = calibration.share([1.0] * 15 + [0.0] * 133)
    assert (found.value, found.low, found.high) == pytest.approx(
        (15 / 148, 0.0624, 0.1605), abs=5e-5
    )
    assert calibration.share([0.0] * 40).low == 0
    assert 0 < calibration.share([0.0] * 40).high < 0.1
    assert calibration.share([1.0] * 40).high == pytest.approx(1)


def test_intervals_of_one_report_do_not_count_as_independent():
    """Ten campaigns that hold all or nothing say less than a hundred independent ones of the same mean."""
    clustered, even = (
        calibration.share([1.0] * 9 + [0.0]),
        calibration.share([0.9, 0.88, 0.92, 0.9, 0.91, 0.89] * 2),
    )
    assert clustered.value == pytest.approx(even.value)
    assert clustered.high - clustered.low > 3 * (even.high - even.low)


def test_rates_are_told_in_a_table_and_in_markdown():
    rates = calibrate([BY_NAME["quiet"], BY_NAME["drift 5 %"]], campaigns=3, metrics=2)
    console = Console(width=420, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(calibration.table(rates))
    terminal, markdown = console.export_text(), calibration.as_markdown(rates)
    for text in (terminal, markdown):
        assert "3 simulated campaigns a scenario, 2 metrics, 12 blocks" in text
        assert "drift 5 %" in text
        assert str(rates[0].false_alarms) in text
    for block in markdown.split("\n\n"):
        assert len({line.count("|") for line in block.splitlines()}) == 1
    assert markdown.count("holds |") + markdown.count("hold** |") == 16


def test_a_broken_promise_is_told():
    rates = calibrate([STILL], campaigns=2, metrics=1)
    broken = [replace(rates[0], false_alarms=calibration.Share(0.4, 0.3, 0.5))]
    assert (
        "| still: any false alarm among 1 metrics | ≤ 6 % | 40.0 % (30.0–50.0) | **does not hold** |"
        in calibration.as_markdown(broken)
    )


def test_all_names_of_metrics_are_simulated_through_the_real_summaries():
    table = simulate(BY_NAME["quiet"], rng=np.random.default_rng(8))
    assert set(METRICS) <= set(table.columns)
    assert table["train/step_seconds_p95"].gt(table[MAIN]).all()
    assert ALPHA == 0.05
