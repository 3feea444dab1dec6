"""Tests of shown numbers: one direction, digits that an interval carries, outward rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import intervals
from experiments.comparison.report import wording
from experiments.comparison.verdicts.findings import Finding
from tests.experiments.comparison.campaigns import RATE, RSS, STEP, frame, paired


def _finding(low: float, value: float, high: float) -> Finding:
    a, b = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [1.1, 1.3, 1.2, 1.5, 1.4, 1.9]
    (finding,) = compare(paired(a, b, STEP), baseline="a").findings
    row = replace(finding.row, estimate=value, ci_low=low, ci_high=high)
    return replace(finding, row=row)


def test_better_is_right_in_every_line() -> None:
    table = frame(factors={"tensorflow": 1.3})
    findings = compare(table, baseline="pytorch", outcomes=[RATE, STEP, RSS]).findings
    bounds = {finding.row.metric: intervals._better_right(finding) for finding in findings}
    assert bounds[STEP] == pytest.approx(bounds[RATE], rel=1e-6)
    for value, low, high in bounds.values():
        assert low <= value <= high  # type: ignore[operator]
    assert bounds[RATE][0] == findings[0].row.estimate < 1


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((0.002853, 1.2, 350.54), "0.0028–360"),
        ((1.271, 1.342, 1.414), "1.27–1.42"),
        ((19.5, 20.1, 20.8), "19–21"),
        ((1.1, 1.2, 1.3), "1.10–1.30"),
        ((1.3, 1.3, 1.3), "no spread"),
    ],
)
def test_digits_follow_the_interval(bounds: tuple[float, float, float], text: str) -> None:
    assert wording.interval(_finding(*bounds)) == text


@pytest.mark.parametrize(
    ("ends", "digits", "rounded"),
    [
        ((19.5, 20.8), {"decimals": 0}, (19, 21)),
        ((-0.0404, -0.0396), {"decimals": 3}, (-0.041, -0.039)),
        ((1.1, 1 / (1 / 1.3)), {"decimals": 1}, (1.1, 1.3)),
        ((0.0012345, 98_765), {"digits": 3}, (0.00123, 98_800)),
        ((0.99994, 1.00004), {"digits": 4}, (0.9999, 1.001)),
        ((0.0, np.inf), {"digits": 3}, (0, np.inf)),
        ((-0.4, -0.0001), {"decimals": 0}, (-1, 0)),
    ],
)
def test_intervals_are_rounded_outwards(
    ends: tuple[float, float], digits: dict[str, int], rounded: tuple[float, float]
) -> None:
    assert wording.outwards(*ends, **digits) == rounded


@pytest.mark.parametrize(
    ("share", "text"), [(0.0213, "2.1 %"), (3.456, "350 %"), (2364.61, "over 10×")]
)
def test_amount_has_no_false_precision(share: float, text: str) -> None:
    assert wording.amount(share, _finding(1.0, 1.1, 1.2)) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0312, "s", "31.2 ms"),
        (100.0, "s", "100 s"),
        (200.0, "s", "3.33 min"),
        (7e8, "bytes", "668 MiB"),
        (0.0, "J", "0 mJ"),
        (1_020.0, "examples/s", "1,020 examples/s"),
    ],
)
def test_quantity_has_a_readable_unit(value: float, unit: str, text: str) -> None:
    outcome = replace(_finding(1.0, 1.1, 1.2).outcome, unit=unit)
    assert wording.quantity(value, outcome) == text
