"""Tests of memory limits, which are read from runs."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.comparison.analyses.memory_limits import edges
from experiments.comparison.verdicts.findings import Edge


def runs(level: str, sizes: dict[int, list[str]], **others: str) -> list[dict[str, object]]:
    return [
        {"framework": level, "params.batch_size": str(size), "outcome": outcome, **others}
        for size, outcomes in sizes.items()
        for outcome in outcomes
    ]


def test_limit_is_between_largest_that_fits_and_smallest_that_does_not() -> None:
    ok, full = "ok", "out_of_memory"
    table = pd.DataFrame(
        [
            *runs(
                "a", {8: [ok, ok], 64: [ok, full], 128: [full], 256: [full]}, model="m2"
            ),  # 64 fitted once
            *runs("b", {8: [full, full]}, model="m10"),
            *runs("a", {8: [ok], 16: [ok]}, model="m10"),
            *runs("b", {8: [ok], 16: ["failed"]}, model="m2"),
        ]
    )
    assert edges(table, factor="framework", strata=["model", "batch_size"]) == (
        Edge("a", "model=m2", 64, 128),
        Edge("b", "model=m10", None, 8),
    )


@pytest.mark.parametrize("outcomes", [["ok"], ["ok", "out_of_memory"], ["failed"]])
def test_no_limit_without_a_size_that_does_not_fit(outcomes: list[str]) -> None:
    assert edges(pd.DataFrame(runs("a", {8: outcomes})), factor="framework", strata=[]) == ()
    assert edges(pd.DataFrame({"framework": ["a"]}), factor="framework", strata=[]) == ()
