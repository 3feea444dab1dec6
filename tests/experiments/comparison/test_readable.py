"""What a report shows can be read: one direction, ticks apart, digits that an interval carries, shares as in the tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import intervals
from experiments.comparison.report import wording
from experiments.comparison.verdicts.findings import Finding
from tests.experiments.comparison.campaigns import RATE, RSS, STEP, frame, paired


def _finding(low: float, value: float, high: float, metric: str = STEP) -> Finding:
    """A finding of six blocks whose estimate and interval are set."""
    (one,) = compare(
        paired([1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [1.1, 1.3, 1.2, 1.5, 1.4, 1.9], metric), baseline="a"
    ).findings
    return replace(one, row=replace(one.row, estimate=value, ci_low=low, ci_high=high))


def test_right_is_better_in_every_line() -> None:
    """Tensorflow is slower: fewer examples and longer steps both lie left of 1."""
    found = compare(
        frame(factors={"tensorflow": 1.3}), baseline="pytorch", outcomes=[RATE, STEP, RSS]
    )
    by_metric = {one.row.metric: intervals._better_right(one) for one in found.findings}
    rate, step = by_metric[RATE], by_metric[STEP]
    assert step == pytest.approx(rate, rel=1e-6), "a step's ratio is that of its rate turned"
    for value, low, high in by_metric.values():
        assert low is not None and high is not None and value is not None  # noqa: PT018
        assert low <= value <= high
    assert rate[0] == found.findings[0].row.estimate < 1


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        ((0.002853, 1.2, 350.54), "0.0028–360"),
        ((1.271, 1.342, 1.414), "1.27–1.42"),
        ((19.5, 20.1, 20.8), "19–21"),
        ((1.1, 1.2, 1.3), "1.10–1.30"),
        ((1.3, 1.3, 1.3), "no spread"),
    ],
)
def test_digits_follow_the_interval(bounds: tuple[float, float, float], told: str) -> None:
    found = _finding(*bounds)
    assert wording.interval(found) == told


@pytest.mark.parametrize(
    ("ends", "asked", "expected"),
    [
        ((19.5, 20.8), {"decimals": 0}, (19, 21)),
        ((-0.0404, -0.0396), {"decimals": 3}, (-0.041, -0.039)),
        ((1.1, 1 / (1 / 1.3)), {"decimals": 1}, (1.1, 1.3)),
        ((0.0012345, 98_765), {"digits": 3}, (0.00123, 98_800)),
        ((0.0, np.inf), {"digits": 3}, (0, np.inf)),
        ((-0.4, -0.0001), {"decimals": 0}, (-1, 0)),
    ],
)
def test_ends_of_intervals_are_rounded_outwards(
    ends: tuple[float, float], asked: dict[str, int], expected: tuple[float, float]
) -> None:
    assert wording.outwards(*ends, **asked) == expected


@pytest.mark.parametrize(
    ("share", "told"), [(0.0213, "2.1 %"), (3.456, "350 %"), (2364.61, "over 10×")]
)
def test_what_could_be_told_apart_has_no_false_precision(share: float, told: str) -> None:
    one = _finding(1.0, 1.1, 1.2)
    assert wording.amount(share, one) == told
