"""Runs become a table, a row a run."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.runs.query import table
from tests.experiments.comparison.campaigns import STEP, runs
from tracking.errors import UsageError
from tracking.records import StoredRun


def test_a_run_becomes_a_row_with_the_schemas_columns():
    found = table(runs(blocks=1))
    first = found[found["framework"] == "pytorch"].iloc[0]
    assert first["run_id"] == "c1-0-pytorch"
    assert (first["block"], first["kind"], first["machine"], first["settings_hash"]) == (
        0,
        "cell",
        "box",
        "h",
    )
    assert (first["params.batch_size"], first["tags.environment"]) == ("32", "e")
    assert 0.02 < first[STEP] < 0.04
    assert "tags.block" not in found.columns


def test_what_a_run_lacks_is_missing_not_zero():
    odd = StoredRun("x", "campaign", "RUNNING", 1, None, {}, {}, {"kind": "campaign"})
    found = table([*runs(blocks=1), odd])
    assert (
        found[found["run_id"] == "x"][[STEP, "block", "end_ms", "params.batch_size", "framework"]]
        .isna()
        .all()
        .all()
    )


def test_other_kinds_of_run_are_not_compared():
    odd = StoredRun(
        "x",
        "features",
        "FINISHED",
        1,
        2,
        {},
        {STEP: 5.0},
        {"kind": "extraction", "framework": "jax"},
    )
    assert compare(table([*runs(), odd])).levels == ("pytorch", "tensorflow")


def test_no_run_at_all_is_a_wrong_call():
    empty = table([])
    assert isinstance(empty, pd.DataFrame)
    with pytest.raises(UsageError, match="no runs to compare"):
        compare(empty)
