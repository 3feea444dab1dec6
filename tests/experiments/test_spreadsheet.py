"""CSV that a spreadsheet program opens without running what somebody named a run."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import hypotheses
from experiments.comparison.analyses.hypotheses import HypothesisResult
from experiments.comparison.report import writing
from experiments.metrics import Hypothesis
from tests.experiments.comparison.campaigns import STEP, frame
from tracking import plain
from tracking.spreadsheet import as_csv

FORMULAS = (
    "=1+1",
    "+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "＝1+1",
    '=HYPERLINK("http://a.org","b")',
)


def _cells(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_text(text: str) -> None:
    assert _cells(as_csv([[text, "plain"]])) == [["'" + plain.visible(text), "plain"]]


def test_numbers_stay_numbers() -> None:
    values = [
        1,
        -1,
        -0.5,
        1e-300,
        True,
        None,
        "-0.5",
        "+3",
        "-1e-05",
        "1.34× faster",
        "pytorch",
        "",
    ]
    (row,) = _cells(as_csv([values]))
    assert row == [
        "1",
        "-1",
        "-0.5",
        "1e-300",
        "True",
        "",
        "-0.5",
        "+3",
        "-1e-05",
        "1.34× faster",
        "pytorch",
        "",
    ]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_table_of_ours_has_a_formula(tmp_path: Path, text: str) -> None:
    comparison = compare(
        frame(levels=("pytorch", text), factors={text: 1.2}), baseline="pytorch", outcomes=[STEP]
    )
    (row,) = csv.DictReader(io.StringIO(writing.as_csv(comparison), newline=""))
    assert row["b"] == "'" + plain.visible(text)
    assert float(row["estimate"]) == comparison.rows[0].estimate
    answer = HypothesisResult(Hypothesis(text, text, "learning", STEP, text), None, text)
    written = (hypotheses.as_csv([answer]),)
    for cell in (cell for table in written for line in _cells(table) for cell in line):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
