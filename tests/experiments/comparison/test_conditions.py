"""Uses of verdicts: conditions by which a call fails, and tags of registered models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.cli.campaign import verdict_code
from experiments.cli.codes import CONDITION_HOLDS, DONE, FAILED, NO_VERDICT
from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.verdicts import conditions
from experiments.comparison.verdicts.findings import Comparison
from experiments.metrics import outcome
from experiments.run.registration import fastest_level, verdict_tags
from tests.experiments.comparison.campaigns import BLEU, LATENCY, LOSS, RATE, STEP, frame
from tracking.errors import ErrorCode, UsageError

MEMORY = "memory/peak_rss_bytes"


@pytest.mark.parametrize(
    ("factor", "options", "fail_if", "code"),
    [
        (1.2, {}, ["slower"], CONDITION_HOLDS),
        (1.2, {}, ["faster", "worse"], CONDITION_HOLDS),
        (1.2, {}, ["faster"], DONE),
        (0.8, {}, ["slower", "worse"], DONE),
        (0.8, {}, ["faster:step"], CONDITION_HOLDS),
        (1.2, {}, ["slower:throughput"], CONDITION_HOLDS),
        (1.2, {}, ["worse:memory"], DONE),
        (1.0, {}, ["worse"], DONE),
        (1.01, {}, ["slower"], DONE),  # different, within the margin
        (1.2, {"primary": MEMORY}, ["slower"], DONE),  # primary outcomes decide
        (1.2, {"primary": MEMORY}, [f"slower:{RATE}"], CONDITION_HOLDS),
        (1.5, {"blocks": 3}, ["slower", "worse"], NO_VERDICT),  # not settled
    ],
    ids=str,
)
def test_exit_code_of_a_condition(
    factor: float, options: Mapping[str, Any], fail_if: list[str], code: int
) -> None:
    others = dict(options)
    runs = frame(factors={"tensorflow": factor}, blocks=others.pop("blocks", 12))
    assert verdict_code(conditions.parse(fail_if), compare(runs, **others)) == code


def test_below_mlflow_run_only_a_condition_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    settled, few = (frame(factors={"tensorflow": 1.2}, blocks=count) for count in (8, 3))
    assert verdict_code(conditions.parse(["slower"]), compare(settled)) == CONDITION_HOLDS
    assert verdict_code(conditions.parse(["slower"]), compare(few)) == DONE


def test_condition_on_an_open_metric_is_no_verdict() -> None:
    """Settle the step, but not the memory that is asked for."""
    table = frame(factors={"tensorflow": 1.2})
    table[MEMORY] = np.random.default_rng(1).lognormal(20, 0.5, len(table))
    result = compare(table)
    assert verdict_code(conditions.parse(["slower:step"]), result) == CONDITION_HOLDS
    assert verdict_code(conditions.parse(["worse:memory"]), result) == NO_VERDICT
    assert verdict_code((), result) == DONE


def test_condition_names_what_exists() -> None:
    with pytest.raises(UsageError) as wrong:
        conditions.parse(["slow"])
    assert wrong.value.code is ErrorCode.UNKNOWN_NAME
    outcomes = [outcome(STEP), outcome(RATE)]
    with pytest.raises(UsageError, match=rf"declare it; did you mean {STEP}\?") as wrong:
        conditions.check(
            conditions.parse(["slower:train/step_second"]), outcomes, hint="; declare it"
        )
    assert wrong.value.code is ErrorCode.UNKNOWN_NAME


@pytest.mark.parametrize(
    ("condition", "primary", "right"),
    [
        ("slower:memory", (), "worse or higher or lower"),
        ("higher:step", (), "worse or slower or faster"),
        ("worse:power/watts_mean", (), "higher or lower"),
        ("lower", (STEP, RATE), "worse or slower or faster"),
        ("lower", (STEP, MEMORY), ""),
        ("lower", (), ""),
        ("worse:memory", (), ""),
    ],
)
def test_verdict_that_an_outcome_cannot_have_is_refused(
    condition: str, primary: tuple[str, ...], right: str
) -> None:
    outcomes = [outcome(name) for name in (STEP, RATE, MEMORY, "power/watts_mean")]
    if not right:
        conditions.check(conditions.parse([condition]), outcomes, primary)
        return
    with pytest.raises(UsageError, match=right) as wrong:
        conditions.check(conditions.parse([condition]), outcomes, primary)
    assert wrong.value.code is ErrorCode.INVALID_VALUE


def test_condition_on_a_metric_that_no_run_has_is_a_failure() -> None:
    table = frame(factors={"tensorflow": 1.2})
    assert verdict_code(conditions.parse(["worse:energy"]), compare(table)) == FAILED
    failing = conditions.parse(["worse:energy", "slower:step"])
    assert verdict_code(failing, compare(table)) == CONDITION_HOLDS
    unmeasured = compare(table, outcomes=[STEP, "val/accuracy"], primary=["val/accuracy"])
    assert verdict_code(conditions.parse(["slower"]), unmeasured) == FAILED
    assert verdict_code((), unmeasured) == NO_VERDICT


THREE = ("pytorch", "tensorflow", "keras-jax")


def judge(table: pd.DataFrame, primary: tuple[str, ...]) -> tuple[ComparisonSpec, Comparison]:
    outcomes = [outcome(metric) for metric in (STEP, RATE, LATENCY, LOSS, BLEU)]
    spec = ComparisonSpec(
        factor="framework", baseline="pytorch", outcomes=outcomes, primary=list(primary)
    )
    return spec, judged(spec, table)


def planted(
    levels: Sequence[str] = THREE[:2], answers: float = 1.0, **options: Any
) -> pd.DataFrame:
    """Return campaigns of quiet runs; answers: the last level's factor of the latency."""
    runs = frame(levels, **{"blocks": 12, "spread": 0.002, **options})
    runs.loc[runs["framework"] == levels[-1], LATENCY] *= answers
    return runs


FASTER = {"tensorflow": 0.8}


@pytest.mark.parametrize(
    ("runs", "primary", "level"),
    [
        (planted(factors=FASTER), [STEP], "tensorflow"),
        (planted(factors=FASTER), [RATE, LOSS], "tensorflow"),  # a loss is no speed
        (planted(factors=FASTER), [LATENCY], ""),
        (planted(factors=FASTER), [LOSS], ""),
        (planted(factors=FASTER), [STEP, LATENCY], "tensorflow"),  # answers as fast: equivalent
        (planted(factors=FASTER, answers=1.5), [STEP, LATENCY], ""),
        (planted(factors=FASTER).drop(columns=LATENCY), [STEP, LATENCY], ""),  # not measured
        (planted(factors=FASTER, blocks=5), [STEP], ""),  # too few blocks
        (planted(factors={"tensorflow": 1.2}), [STEP], "pytorch"),
        (planted(factors={"tensorflow": 1.0}), [STEP], ""),  # equivalent
        (planted(factors={"tensorflow": 0.985}), [STEP], ""),  # by less than the margin
        (planted(factors={"tensorflow": 0.97}, blocks=8, spread=0.2), [STEP], ""),  # inconclusive
        (planted(THREE, factors={"tensorflow": 0.8, "keras-jax": 0.6}), [STEP], "keras-jax"),
        # both beat the baseline, neither the other
        (planted(THREE, factors={"tensorflow": 0.8, "keras-jax": 0.8}), [STEP], ""),
        (planted(THREE, factors={"tensorflow": 1.3, "keras-jax": 1.2}), [STEP], "pytorch"),
    ],
)
def test_fastest_is_faster_than_each_other_by_a_verdict(
    runs: pd.DataFrame, primary: list[str], level: str
) -> None:
    spec, comparison = judge(runs, tuple(primary))
    assert fastest_level(spec, comparison, runs) == level


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
