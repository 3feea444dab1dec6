"""What a report shows can be read: one direction, ticks apart, digits that an interval carries, shares as in the tables."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.comparison import compare
from experiments.comparison.analyses import intervals, survival
from experiments.comparison.analyses.survival import Reached
from experiments.comparison.report import wording
from experiments.comparison.report.canvas import STYLE, ratio_ticks
from experiments.comparison.verdicts.findings import Finding
from experiments.workloads.captioning import samples
from tests.experiments.comparison.campaigns import LOSS, RATE, RSS, STEP, frame, paired


def _finding(low: float, value: float, high: float, metric: str = STEP) -> Finding:
    """A finding of six blocks whose estimate and interval are set."""
    (one,) = compare(
        paired([1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [1.1, 1.3, 1.2, 1.5, 1.4, 1.9], metric), baseline="a"
    ).findings
    return replace(one, row=replace(one.row, estimate=value, ci_low=low, ci_high=high))


def test_right_is_better_in_every_line() -> None:
    """tensorflow is slower: fewer examples and longer steps both lie left of 1."""
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


def test_right_is_better_for_differences_too() -> None:
    one = _finding(-0.2, -0.1, 0.05, LOSS)
    assert intervals._in_margins(one) == pytest.approx(
        (2.0, -1.0, 4.0)
    )  # a margin of 0.05 nats; less is better
    neither = replace(one, outcome=replace(one.outcome, better="neither"))
    assert intervals._in_margins(neither) == pytest.approx((-2.0, -4.0, 1.0))


@pytest.mark.parametrize("spread", [1.02, 1.3, 2.0, 5.0, 60.0, 1e4, 1e9])
def test_ticks_of_ratios_never_overlap(spread: float) -> None:
    with mpl.rc_context(STYLE):
        canvas = Figure(figsize=(9.2, 2.0))
        FigureCanvasAgg(canvas)
        axes = canvas.add_subplot()
        canvas.subplots_adjust(left=0.35, right=0.8)  # as narrow as labels on both sides make it
        axes.set_xscale("log")
        axes.set_xlim(min(0.9, 1 / spread), max(1.1, spread))
        ratio_ticks(axes.xaxis)
        canvas.canvas.draw()
    boxes = [one.get_window_extent() for one in axes.get_xticklabels() if one.get_text()]
    assert len(boxes) >= 2
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_a_share_of_runs_is_what_the_table_says() -> None:
    """The run that never got there ended before the last that did: Kaplan and Meier's curve would reach 1."""
    one = Reached(
        "90", "", "a", np.array([10.0, 12.0, 20.0]), np.array([True, False, True]), ("1", "2", "3")
    )
    axes = Figure().add_subplot()
    survival._steps(axes, [one], {"a": "black"}, "90 % accuracy", "")
    line, ended = axes.lines
    assert list(line.get_ydata()) == pytest.approx([0, 1 / 3, 2 / 3, 2 / 3])
    assert list(line.get_xdata()) == [0, 10, 20, 20]
    assert (ended.get_xdata()[0], ended.get_ydata()[0]) == (12, pytest.approx(1 / 3))


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
    assert wording.detectable(replace(one, row=replace(one.row, minimum_in_family=share))) == told


def test_a_caption_that_never_changes_is_said_to(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    rows = [
        samples.Row(tmp_path / "a.png", f"a {at}", {"toy": "a red", "other": f"a {at}"})
        for at in ("one", "two")
    ]
    samples.write(tmp_path, rows, "Captions")
    page = (tmp_path / "captions.html").read_text()
    assert "toy writes the same caption under every picture" in page
    assert "other writes" not in page
    assert "reference caption" in page
    assert "person" not in page
