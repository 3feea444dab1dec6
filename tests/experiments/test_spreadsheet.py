"""CSV whose cells a spreadsheet program does not run as formulas."""

from __future__ import annotations

import csv
import io

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


def parse(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("text", FORMULAS)
def test_formula_is_text(text: str) -> None:
    assert parse(as_csv([[text, "plain"]])) == [["'" + plain.visible(text), "plain"]]


def test_numbers_stay_numbers() -> None:
    values = [1, -1, -0.5, 1e-300, True, None, "-0.5", "+3", "-1e-05", "1.34× faster", "x", ""]
    (row,) = parse(as_csv([values]))
    assert row == ["" if value is None else str(value) for value in values]


@pytest.mark.parametrize("text", FORMULAS)
def test_tables_of_a_report_have_no_formula(text: str) -> None:
    comparison = compare(
        frame(levels=("pytorch", text), factors={text: 1.2}), baseline="pytorch", outcomes=[STEP]
    )
    (row,) = csv.DictReader(io.StringIO(writing.as_csv(comparison), newline=""))
    assert row["b"] == "'" + plain.visible(text)
    assert float(row["estimate"]) == comparison.rows[0].estimate
    result = HypothesisResult(Hypothesis(text, text, "learning", STEP, text), None, text)
    for line in parse(hypotheses.as_csv([result])):
        for cell in line:
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
