"""Factors that change the environment by their nature."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.runs.pairing import Mismatch
from experiments.comparison.runs.warning import WarningCode
from experiments.comparison.verdicts.findings import Comparison
from tests.experiments.comparison.campaigns import STEP, frame

DAY = 24 * 3_600_000
SAME = {"version.numpy": "2.4", "version.keras": "3", "cpu": "2 × x", "commit": "abc"}


def sides(first: dict[str, str], second: dict[str, str]) -> pd.DataFrame:
    """Return a campaign of each kind, a day apart, of which the second is 20 % slower."""
    tables = []
    for at, tags in enumerate((first, second)):
        slower = {"pytorch": 1 + 0.2 * at}
        tags = {**SAME, "environment": f"e{at}", **tags}
        side = frame(["pytorch"], seed=at, campaign=f"c{at}", factors=slower, tags=tags)
        times = {name: side[name] + at * DAY for name in ("start_ms", "end_ms")}
        tables.append(side.assign(**times))
    return pd.concat(tables, ignore_index=True)


def judge(table: pd.DataFrame, factor: str, **options: object) -> Comparison:
    return compare(table, factor=factor, outcomes=[STEP], **options)  # type: ignore[arg-type]


BY_FACTOR = {
    "version.torch": (
        {"version.torch": "2.8", "version.torchvision": "0.23"},
        {"version.torch": "2.9", "version.torchvision": "0.24"},
    ),
    "machine": ({"machine": "box"}, {"machine": "other", "cpu": "4 × y"}),
    "cpu": ({"machine": "box"}, {"machine": "other", "cpu": "4 × y"}),
    "environment": ({"version.torch": "2.8"}, {"version.torch": "2.9", "version.numpy": "2.5"}),
    "commit": ({"environment": "e"}, {"environment": "e", "commit": "def"}),
}


@pytest.mark.parametrize("factor", BY_FACTOR)
def test_differences_that_belong_to_the_factor_are_expected(factor):
    comparison = judge(sides(*BY_FACTOR[factor]), factor)
    assert [(row.n_blocks, row.verdict) for row in comparison.rows] == [(8, "slower")]
    codes = {warning.code for warning in comparison.warnings}
    assert WarningCode.SEPARATE_CAMPAIGNS in codes


@pytest.mark.parametrize(
    ("factor", "besides", "code", "values"),
    [
        ("version.torch", {"version.numpy": "2.5"}, Mismatch.VERSIONS, "version.numpy (2.4, 2.5)"),
        ("version.torch", {"machine": "other"}, Mismatch.MACHINES, "machine (box, other)"),
        ("version.torch", {"cpu": "4 × y"}, Mismatch.VERSIONS, "cpu (2 × x, 4 × y)"),
        ("machine", {"version.torch": "2.9"}, Mismatch.VERSIONS, "version.torch (2.8, 2.9)"),
        ("cpu", {"gpu": "H"}, Mismatch.VERSIONS, "gpu (none, H)"),
        ("environment", {"machine": "other"}, Mismatch.MACHINES, "machine (box, other)"),
    ],
)
def test_other_differences_are_a_mismatch(factor, besides, code, values):
    first, second = ({"version.torch": "2.8", **tags} for tags in BY_FACTOR[factor])
    (finding,) = judge(sides(first, {**second, **besides}), factor).findings
    assert finding.mismatch is code
    assert values in finding.row.reason


def test_allowed_differences_are_ignored():
    first, second = BY_FACTOR["version.torch"]
    table = sides(first, {**second, "version.numpy": "2.5"})
    (row,) = judge(table, "version.torch", allowed_to_differ=("version.numpy",)).rows
    assert row.verdict == "slower"


def test_two_environments_of_one_level_are_a_mismatch():
    table = sides(*BY_FACTOR["version.torch"])
    table.loc[table["block"] == 3, "tags.environment"] += "+changes"
    (finding,) = judge(table, "version.torch").findings
    assert finding.mismatch is Mismatch.VERSIONS
    assert "environment (e0, e0+changes)" in finding.row.reason
