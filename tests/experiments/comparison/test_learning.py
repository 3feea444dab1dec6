"""Tests of learning curves, times to an accuracy and hypotheses, from runs of known answers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import Evidence, hypotheses, learning
from experiments.comparison.runs.raw import RawRun
from experiments.comparison.runs.warning import WarningCode
from experiments.comparison.verdicts.decision import Decision
from experiments.metrics import Hypothesis
from tests.experiments.comparison.campaigns import frame, paired

EPOCHS = 5
TOTAL = "train/total_seconds"


def curves(
    shift: float, *, blocks: int = 6, noise: float = 0.004, metric: str = "val/accuracy"
) -> list[RawRun]:
    """Return two levels that learn alike, but b lies `shift` off in the third epoch."""
    rng, runs = np.random.default_rng(0), []
    for block in map(str, range(1, blocks + 1)):
        common = np.linspace(0.5, 0.9, EPOCHS) + 0.02 * rng.standard_normal()
        for level in ("a", "b"):
            values = common + noise * rng.standard_normal(EPOCHS)
            values[2] += shift * (level == "b")
            runs.append(RawRun(f"{level}{block}", level, "", block, {}, epochs={metric: values}))
    return runs


@pytest.mark.parametrize(
    ("raw", "alike", "epoch"),
    [
        (curves(0.0, noise=0.002), True, None),
        (curves(0.006, noise=0.0005), True, 3),  # certain, but less than one point
        (curves(-0.05), False, 3),
        (curves(-0.5, blocks=5, metric="val/loss"), None, 3),
        (curves(-0.5, blocks=2), None, None),
    ],
)
def test_agreement_of_curves(raw: list[RawRun], alike: bool | None, epoch: int | None) -> None:
    (agreement,) = learning.agreements(raw, "a")
    assert (agreement.a, agreement.b, agreement.n_epochs) == ("a", "b", EPOCHS)
    assert agreement.metric in raw[0].epochs
    assert agreement.n_blocks == len(raw) // 2
    assert agreement.alike is alike
    assert epoch in (None, agreement.epoch)
    evidence = Evidence(compare(paired([1.0, 2.0], [1.0, 2.0])), raw=raw)
    codes = [warning.code for warning in learning.warnings(evidence)]
    assert codes == ([WarningCode.LEARNING_DIFFERS] if alike is False else [])
    (section,) = learning.table(evidence)
    assert len(section.rows) == 1


def test_agreement_has_the_difference_of_its_epoch_from_two_blocks_on() -> None:
    (agreement,) = learning.agreements(curves(-0.05), "a")
    assert agreement.estimate is not None
    assert agreement.estimate.value == pytest.approx(-0.05, abs=0.01)
    assert learning.agreements(curves(0.0, blocks=1), "a") == learning.agreements([], "a") == []


def with_times(never: int) -> pd.DataFrame:
    """Return 8 blocks; tensorflow is slower to 90 %, which `never` of its runs do not reach."""
    table = frame(blocks=8, params={"thresholds": "0.9,0.95"})
    is_late, blocks = table["framework"] == "tensorflow", table["block"].astype(int)
    seconds = np.where(is_late, 40.0, 20.0) + blocks
    seconds = np.where(is_late & (blocks < never), np.nan, seconds)
    return table.assign(**{TOTAL: 100.0 + blocks, "train/to_accuracy_90_percent_seconds": seconds})


def test_runs_that_do_not_reach_an_accuracy_are_counted() -> None:
    """The fourth of eight times is the median; runs that never reach it come last."""

    def rows(never: int) -> list[tuple[object, ...]]:
        evidence = Evidence(compare(with_times(never), baseline="pytorch", outcomes=[TOTAL]))
        (section,) = learning.times_to_accuracy(evidence)
        return [tuple(row) for row in section.rows]

    assert rows(3) == [
        ("90 %", "pytorch", "8 of 8", "23 s"),
        ("90 %", "tensorflow", "5 of 8", "46 s"),
        ("95 %", "pytorch", "0 of 8", "never"),
        ("95 %", "tensorflow", "0 of 8", "never"),
    ]
    assert rows(5)[1] == ("90 %", "tensorflow", "3 of 8", "never")


def test_times_to_accuracy_have_no_verdict_and_do_not_depend_on_the_outcomes() -> None:
    comparisons = [
        compare(with_times(3), baseline="pytorch", outcomes=[metric])
        for metric in (TOTAL, "val/loss")
    ]
    sections = [learning.times_to_accuracy(Evidence(comparison)) for comparison in comparisons]
    assert sections[0] == sections[1] != []
    judged = {finding.row.metric for finding in compare(with_times(3)).findings}
    assert TOTAL in judged
    assert not any("to_accuracy" in metric for metric in judged)
    without = with_times(3).drop(columns=TOTAL)
    assert learning.times_to_accuracy(Evidence(compare(without, baseline="pytorch"))) == []


HYPOTHESES = (
    Hypothesis("H1", "Does one take less time?", "learning", TOTAL, "3.90e-18"),
    Hypothesis("H2", "Is one cooler?", "learning", "gpu/temperature_celsius_mean", "0.5"),
    Hypothesis(
        "H3", "Is one cooler?", "inference", "inference/cpu/temperature_celsius_mean", "0.5"
    ),
)


def test_hypothesis_without_values_has_a_reason() -> None:
    table = frame(blocks=8)
    noise = np.exp(0.01 * np.random.default_rng(1).standard_normal(len(table)))
    table[TOTAL] = np.where(table["framework"] == "tensorflow", 20.0, 10.0) * noise
    table["tags.not_available.gpu"] = "no NVIDIA device"
    outcomes = [hypothesis.metric for hypothesis in HYPOTHESES]
    comparison = compare(table, baseline="pytorch", outcomes=outcomes)
    results = hypotheses.answered(HYPOTHESES, comparison)
    time, gpu, cpu = results
    assert time.finding is not None
    assert (time.finding.decision, time.finding.way) == (Decision.DIFFERENT, "slower")
    assert (gpu.finding, cpu.finding, gpu.reason) == (None, None, "no NVIDIA device")
    lines = hypotheses.as_csv(results).splitlines()
    assert [line.split(",")[0] for line in lines] == ["hypothesis", "H1", "H2", "H3"]
    assert hypotheses.cells(time)[-1] == "3.90e-18"


@pytest.mark.parametrize(
    ("ratio", "spread", "decision"),
    [
        (1.035, 0.01, Decision.SIZE_OPEN),
        (1.01, 0.002, Decision.WITHIN_MARGIN),
        (1.0, 0.01, Decision.EQUIVALENT),
        (1.0, 0.0, Decision.IDENTICAL),
        (2.0, 0.0, Decision.DIFFERENT),
        (1.01, 0.0, Decision.CONSTANT),
    ],
)
def test_null_hypothesis_does_not_depend_on_the_margin(
    ratio: float, spread: float, decision: Decision
) -> None:
    """Log-ratios with exactly this mean and SD: the answers to both questions are known."""
    noise = np.random.default_rng(0).permutation(np.linspace(-1, 1, 12))
    values = ratio * np.exp(spread * noise / noise.std(ddof=1))
    comparison = compare(paired([1.0] * 12, list(values), TOTAL))
    (result,) = hypotheses.answered(HYPOTHESES[:1], comparison)
    assert result.finding is not None
    assert result.finding.decision is decision
    is_rejected = ratio != 1
    assert result.finding.different is is_rejected
    counts = (
        f"Rejected: {int(is_rejected)}, no difference beyond the margin: {int(not is_rejected)}, "
    )
    assert counts in hypotheses.sentence([result])
    assert ("rejected" in hypotheses.text(result)) is is_rejected
