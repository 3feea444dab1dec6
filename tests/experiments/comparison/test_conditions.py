"""Conditions by which a call fails: only on a settled verdict beyond the margin."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.cli.campaign import verdict_code
from experiments.cli.codes import CONDITION_HOLDS, DONE, FAILED, NO_VERDICT
from experiments.comparison import compare
from experiments.comparison.verdicts import conditions
from experiments.metrics import outcome
from tests.experiments.comparison.campaigns import RATE, STEP, frame
from tracking.errors import ErrorCode, UsageError

MEMORY = "memory/peak_rss_bytes"


@pytest.mark.parametrize(
    ("factor", "fail_if", "code"),
    [
        (1.2, ["slower"], CONDITION_HOLDS),
        (1.2, ["faster", "worse"], CONDITION_HOLDS),
        (1.2, ["faster"], DONE),
        (0.8, ["slower", "worse"], DONE),
        (0.8, ["faster:step"], CONDITION_HOLDS),
        (1.2, ["slower:throughput"], CONDITION_HOLDS),
        (1.2, ["worse:memory"], DONE),
        (1.0, ["worse"], DONE),
        (1.01, ["slower"], DONE),  # different, within the margin
    ],
    ids=str,
)
def test_exit_code_of_a_condition(factor: float, fail_if: list[str], code: int) -> None:
    result = compare(frame(factors={"tensorflow": factor}, blocks=12))
    assert verdict_code(conditions.parse(fail_if), result) == code


def test_unsettled_difference_never_holds() -> None:
    """Compare three blocks with a difference of 50 %, which have no verdict."""
    result = compare(frame(factors={"tensorflow": 1.5}, blocks=3))
    assert verdict_code(conditions.parse(["slower", "worse"]), result) == NO_VERDICT


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


def test_primary_outcomes_decide_if_any_is_declared() -> None:
    result = compare(frame(factors={"tensorflow": 1.2}), primary=MEMORY)
    assert verdict_code(conditions.parse(["slower"]), result) == DONE
    assert verdict_code(conditions.parse([f"slower:{RATE}"]), result) == CONDITION_HOLDS


def test_condition_names_what_exists() -> None:
    with pytest.raises(UsageError) as wrong:
        conditions.parse(["slow"])
    assert wrong.value.code is ErrorCode.UNKNOWN_NAME
    outcomes = [outcome(STEP), outcome(RATE)]
    with pytest.raises(UsageError, match=f"did you mean {STEP}.* {RATE}; declare it") as wrong:
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
