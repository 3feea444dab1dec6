"""Verdicts as tags of registered models, and the level that may be called the fastest."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.verdicts.findings import Comparison
from experiments.metrics import outcome
from experiments.run.registration import fastest_level, verdict_tags
from tests.experiments.comparison.campaigns import BLEU, LATENCY, LOSS, RATE, STEP, frame

THREE = ("pytorch", "tensorflow", "keras-jax")


def judge(table: pd.DataFrame, primary: tuple[str, ...]) -> tuple[ComparisonSpec, Comparison]:
    outcomes = [outcome(metric) for metric in (STEP, RATE, LATENCY, LOSS, BLEU)]
    spec = ComparisonSpec(
        factor="framework", baseline="pytorch", outcomes=outcomes, primary=list(primary)
    )
    return spec, judged(spec, table)


def fastest(table: pd.DataFrame, *primary: str) -> str:
    spec, comparison = judge(table, primary)
    return fastest_level(spec, comparison, table)


@pytest.mark.parametrize(
    ("factors", "level"),
    [
        ({"tensorflow": 0.8}, "tensorflow"),
        ({"tensorflow": 1.2}, "pytorch"),
        ({"tensorflow": 1.0}, ""),  # equivalent
        ({"tensorflow": 0.985}, ""),  # different, by less than the margin
    ],
)
def test_fastest_is_faster_by_a_verdict(factors: dict[str, float], level: str) -> None:
    table = frame(blocks=12, factors=factors, spread=0.002)
    assert fastest(table, STEP) == level
    assert fastest(table, RATE, LOSS) == level, "a loss is no speed"
    assert fastest(table, LATENCY) == fastest(table, LOSS) == ""


def test_open_or_missing_speeds_leave_it_open() -> None:
    table = frame(blocks=12, factors={"tensorflow": 0.8}, spread=0.002)
    assert fastest(table, STEP, LATENCY) == "tensorflow", "answers as fast: equivalent"
    few = table[table["block"].astype(int) < 5]
    assert fastest(few, STEP) == "", "too few blocks"
    noisy = frame(blocks=8, factors={"tensorflow": 0.97}, spread=0.2)
    assert fastest(noisy, STEP) == "", "inconclusive"
    assert fastest(table.drop(columns=LATENCY), STEP, LATENCY) == "", "not measured"


def test_mixed_speeds_leave_it_open() -> None:
    table = frame(blocks=12, factors={"tensorflow": 0.8}, spread=0.002)
    is_tensorflow = table["framework"] == "tensorflow"
    table.loc[is_tensorflow, LATENCY] *= 1.5
    assert fastest(table, STEP, LATENCY) == ""


@pytest.mark.parametrize(
    ("factors", "level"),
    [
        ({"tensorflow": 0.8, "keras-jax": 0.6}, "keras-jax"),
        ({"tensorflow": 0.8, "keras-jax": 0.8}, ""),  # both beat the baseline, neither the other
        ({"tensorflow": 1.3, "keras-jax": 1.2}, "pytorch"),
    ],
)
def test_fastest_of_three_beats_each_other_one(factors: dict[str, float], level: str) -> None:
    assert fastest(frame(THREE, 12, factors=factors, spread=0.002), STEP) == level


def test_tags_are_the_primary_rows_of_a_level() -> None:
    table = frame(THREE, 12, factors={"tensorflow": 0.8}, spread=0.002).drop(columns=LATENCY)
    _, comparison = judge(table, (STEP, LATENCY, BLEU))
    assert verdict_tags(None, "pytorch") == verdict_tags(comparison, "pytorch") == {}
    tags = verdict_tags(comparison, "tensorflow")
    (row,) = (row for row in comparison.rows if (row.metric, row.b) == (STEP, "tensorflow"))
    assert (tags[f"verdict/{STEP}"], tags[f"verdict/{STEP}/code"]) == ("faster", "different")
    assert (tags[f"verdict/{STEP}/kind"], tags[f"verdict/{STEP}/blocks"]) == ("ratio", "12")
    for name in ("estimate", "ci_low", "ci_high"):
        assert float(tags[f"verdict/{STEP}/{name}"]) == pytest.approx(getattr(row, name), rel=1e-5)
    assert tags[f"verdict/{STEP}/reason"] == row.reason
    assert tags[f"verdict/{LATENCY}"] == "not measured"
    assert tags[f"verdict/{BLEU}/code"] == "identical"
    assert not [key for key in tags if key.startswith(f"verdict/{RATE}")]
