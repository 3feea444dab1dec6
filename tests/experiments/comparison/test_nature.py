"""Factors that change the environment by their nature: what differs by the factor is expected, everything else is not."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.runs.warning import WarningCode
from experiments.comparison.verdicts.findings import Row
from tests.experiments.comparison.campaigns import STEP, frame

DAY = 24 * 3_600_000
SAME = {"version.numpy": "2.4", "version.keras": "3", "cpu": "2 × x", "commit": "abc"}


def sides(first: dict[str, str], second: dict[str, str]) -> pd.DataFrame:
    """A campaign of each kind, a day apart, of which the second is 20 % slower."""
    tables = []
    for at, own in enumerate((first, second)):
        tags = {**SAME, "environment": f"e{at}", **own}
        one = frame(
            ["pytorch"], seed=at, campaign=f"c{at}", factors={"pytorch": 1 + 0.2 * at}, tags=tags
        )
        tables.append(
            one.assign(start_ms=one["start_ms"] + at * DAY, end_ms=one["end_ms"] + at * DAY)
        )
    return pd.concat(tables, ignore_index=True)


def row(table: pd.DataFrame, factor: str, **how: object) -> Row:
    return compare(table, factor=factor, outcomes=[STEP], **how).rows[0]  # type: ignore[arg-type]


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
def test_what_differs_by_the_factor_is_expected(factor):
    table = sides(*BY_FACTOR[factor])
    found = compare(table, factor=factor, outcomes=[STEP])
    assert [(one.n_blocks, one.verdict) for one in found.rows] == [(8, "slower")]
    assert WarningCode.SEPARATE_CAMPAIGNS in {warning.code for warning in found.warnings}


@pytest.mark.parametrize(
    ("factor", "besides", "named"),
    [
        ("version.torch", {"version.numpy": "2.5"}, "version.numpy (2.4, 2.5)"),
        (
            "version.torch",
            {"machine": "other"},
            "several machines are not pooled: machine (box, other)",
        ),
        ("version.torch", {"cpu": "4 × y"}, "cpu (2 × x, 4 × y)"),
        ("machine", {"version.torch": "2.9"}, "version.torch (2.8, 2.9)"),
        ("cpu", {"gpu": "H"}, "gpu (none, H)"),
        ("environment", {"machine": "other"}, "several machines are not pooled"),
    ],
)
def test_everything_else_is_not(factor, besides, named):
    first, second = BY_FACTOR[factor]
    found = row(
        sides({"version.torch": "2.8", **first}, {"version.torch": "2.8", **second, **besides}),
        factor,
    )
    assert found.verdict == "not comparable"
    assert named in found.reason


def test_what_is_called_immaterial_may_differ():
    first, second = BY_FACTOR["version.torch"]
    table = sides(first, {**second, "version.numpy": "2.5"})
    assert row(table, "version.torch", allowed_to_differ=("version.numpy",)).verdict == "slower"


def test_two_environments_of_one_level_are_not_by_the_factor():
    table = sides(*BY_FACTOR["version.torch"])
    table.loc[table["block"] == 3, "tags.environment"] += "+changes"
    found = row(table, "version.torch")
    assert (found.verdict, "environment (e0, e0+changes)" in found.reason) == (
        "not comparable",
        True,
    )
