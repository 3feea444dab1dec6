"""Table of runs, a row a run."""

from __future__ import annotations

import pytest

from experiments.comparison import compare
from experiments.comparison.runs.query import table
from tests.experiments.comparison.campaigns import STEP, runs
from tracking.errors import ErrorCode, UsageError
from tracking.records import StoredRun


def stored(kind: str, **metrics: float) -> StoredRun:
    tags = {"kind": kind, "framework": "jax"}
    return StoredRun("x", kind, "FINISHED", 1, None, {}, metrics, tags)


def test_table_has_the_columns_of_the_schema():
    cells = table(runs(blocks=1))
    cell = cells[cells["framework"] == "pytorch"].iloc[0]
    assert cell["run_id"] == "c1-0-pytorch"
    names = ["block", "kind", "machine", "settings_hash", "params.batch_size", "tags.environment"]
    assert cell[names].tolist() == [0, "cell", "box", "h", "32", "e"]
    assert 0.02 < cell[STEP] < 0.04
    assert "tags.block" not in cells.columns


def test_missing_values_are_not_zero():
    every = table([*runs(blocks=1), stored("campaign")])
    missing = every[every["run_id"] == "x"][[STEP, "block", "end_ms", "params.batch_size"]]
    assert missing.isna().all().all()


def test_only_cells_are_compared():
    extraction = stored("extraction", **{STEP: 5.0})
    assert compare(table([*runs(), extraction])).levels == ("pytorch", "tensorflow")


def test_empty_table_is_a_usage_error():
    with pytest.raises(UsageError) as error:
        compare(table([]))
    assert error.value.code is ErrorCode.NO_RUNS
