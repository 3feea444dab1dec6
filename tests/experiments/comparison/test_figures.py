"""Tests of figures: valid files, drawn only from what was measured."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib import style
from matplotlib.figure import Figure as Canvas

from experiments.comparison import analyses, compare
from experiments.comparison.analyses import Evidence, intervals, latencies, runs
from experiments.comparison.report import canvas
from experiments.comparison.runs.raw import RawRun
from tests.experiments.comparison.campaigns import LATENCY, RATE, STEP, frame
from tests.experiments.comparison.steps import raw_runs
from tests.experiments.comparison.test_batch_sizes import with_inference


def _draw(
    table: pd.DataFrame, strata: Sequence[str] = (), raw: Sequence[RawRun] = ()
) -> dict[str, canvas.Figure]:
    evidence = Evidence(compare(table, strata=strata), table, raw)
    return {drawing.name: canvas.draw(drawing) for drawing in analyses.drawings(evidence)}


def test_style_of_another_library_does_not_reach_the_figures() -> None:
    expected = _draw(frame())
    assert list(expected) == ["forest", "blocks"]
    with style.context("ggplot"):
        assert _draw(frame()) == expected


def test_all_figures_are_valid() -> None:
    parts = [
        frame(("a", "b", "c"), seed=at, params={"workload": f"w{at}"}, campaign=f"c{at}")
        for at in range(2)
    ]
    table = with_inference(pd.concat(parts, ignore_index=True))
    raw = raw_runs(table, strata=("workload",), maximum=9)
    figures = _draw(table, ("workload",), raw)
    assert list(figures) == ["forest", "latencies", "blocks"]
    for figure in figures.values():
        ET.fromstring(figure.svg)
        assert figure.png.startswith(b"\x89PNG")
        assert "nan" not in re.sub(r"[^ ]*base64,[^ ]*", "", figure.svg).lower()


def test_missing_steps_and_values_of_one_side_are_no_obstacle() -> None:
    table = frame(levels=["a", "b", "c"])
    table.loc[table["framework"] == "b", LATENCY] = np.nan
    table.loc[table["framework"] == "c", ["status", "outcome"]] = ["FAILED", "failed"]
    raw = [
        replace(run, phases={}) if run.level == "b" else run for run in raw_runs(table, maximum=6)
    ]
    evidence = Evidence(compare(table), table, raw)
    assert all(len(make(evidence)) == 1 for make in (latencies.figure, runs.by_level))


@pytest.mark.parametrize("blocks", [runs.MINIMUM_FOR_A_BOX - 1, runs.MINIMUM_FOR_A_BOX])
def test_box_needs_enough_runs(blocks: int) -> None:
    comparison = compare(frame(blocks=blocks))
    axes = Canvas().add_subplot()
    colours = canvas.colours_of(comparison.levels)
    runs.paint_levels(axes, comparison.values[STEP], 1.0, colours)
    assert len(axes.patches) == (2 if blocks == runs.MINIMUM_FOR_A_BOX else 0)
    assert len(axes.lines) == blocks


@pytest.mark.parametrize("count", [2, 8, 30])
def test_colours_of_levels_differ(count: int) -> None:
    assert len(set(canvas.colours_of(list(map(str, range(count)))).values())) == count


def test_long_forest_keeps_the_headlines() -> None:
    table = frame([f"level {at}" for at in range(9)], 6)
    values = 1 + np.random.default_rng(0).random((len(table), 20))
    others = pd.DataFrame(values, columns=[f"custom/m{at}_seconds" for at in range(20)])
    comparison = compare(pd.concat([table, others], axis=1))
    (drawing,) = intervals.forest(Evidence(comparison))
    shown = drawing.paint.args[0]  # type: ignore[attr-defined]
    assert len(shown) == intervals.MAXIMUM_LINES
    metrics = [finding.row.metric for finding in shown]
    assert [metrics.count(metric) for metric in (RATE, LATENCY)] == [8, 8]
    assert f"{len(shown)} of " in drawing.caption


def test_caption_counts_panels_that_are_left_out() -> None:
    parts = [frame(seed=at, campaign=f"c{at}").assign(machine=f"m{at}") for at in range(5)]
    table = pd.concat(parts, ignore_index=True)
    (drawing,) = runs.by_level(Evidence(compare(table, strata=["machine"]), table))
    assert f"first {canvas.MAXIMUM_PANELS} of " in drawing.caption
