"""Figures: drawn where there is something to show, and only there; what a report says of steps, controls and papers."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure as Canvas

from experiments.comparison import analyses, compare
from experiments.comparison.analyses import Evidence, intervals, latencies, runs
from experiments.comparison.report import canvas
from tests.experiments.comparison.campaigns import LATENCY, RATE, STEP, frame
from tests.experiments.comparison.steps import raw_runs
from tests.experiments.comparison.test_batch_sizes import _with_inference, _workloads


def _drawn(
    table: pd.DataFrame, *, strata: tuple[str, ...] = (), raw=()
) -> dict[str, canvas.Figure]:
    evidence = Evidence(compare(table, strata=strata), table, raw)
    return {one.name: canvas.made(one) for one in analyses.drawings(evidence)}


def test_without_steps_there_are_the_figures_of_runs():
    assert list(_drawn(frame())) == ["forest", "blocks"]


def test_a_style_that_somebody_else_has_set_does_not_reach_the_figures() -> None:
    """As Optuna's plots do, for the rest of the process."""
    ours = _drawn(frame())
    with style.context("ggplot"):
        assert _drawn(frame()) == ours


def test_with_everything_there_are_all_figures_and_all_are_valid_svg():
    table = _workloads(3)
    table = _with_inference(table)
    found = _drawn(
        table, strata=("workload",), raw=raw_runs(table, strata=("workload",), maximum=9)
    )
    names = ["forest", "blocks", "latencies", "batches"]
    assert list(found) == names
    for one in found.values():
        ET.fromstring(one.svg)
        assert one.png.startswith(b"\x89PNG")
        assert "nan" not in re.sub(r"[^ ]*base64,[^ ]*", "", one.svg).lower()


def _evidence(table: pd.DataFrame, raw=()) -> Evidence:
    return Evidence(compare(table), table, raw)


def test_one_side_without_steps_or_values_is_no_obstacle():
    table = frame(levels=["a", "b", "c"])
    table.loc[table["framework"] == "b", LATENCY] = np.nan
    table.loc[table["framework"] == "c", ["status", "outcome"]] = ["FAILED", "failed"]
    raw = [
        replace(run, phases={}) if run.level == "b" else run for run in raw_runs(table, maximum=6)
    ]
    evidence = _evidence(table, raw)
    assert all(maker(evidence) for maker in (latencies.figure, runs.by_level))


def _axes():
    return Canvas().add_subplot()


def test_a_box_needs_runs_enough():
    for blocks, boxes in ((runs.MINIMUM_FOR_A_BOX - 1, 0), (runs.MINIMUM_FOR_A_BOX, 2)):
        comparison = compare(frame(blocks=blocks))
        axes = _axes()
        runs._paint_levels(axes, comparison.values[STEP], 1.0, canvas.colours_of(comparison.levels))
        assert len(axes.patches) == boxes
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        assert [len(line.get_xdata()) for line in dots] == [blocks, blocks]


def test_colours_of_many_levels_are_all_different():
    for count in (2, 8, 30):
        assert len(set(canvas.colours_of([str(at) for at in range(count)]).values())) == count


def test_a_forest_that_nobody_could_read_keeps_whole_outcomes_headlines_first():
    table = frame(levels=[f"l{at}" for at in range(9)], blocks=6)
    rng = np.random.default_rng(0)
    table = pd.concat(
        [
            table,
            pd.DataFrame({f"custom/m{at}_seconds": 1 + rng.random(len(table)) for at in range(20)}),
        ],
        axis=1,
    )
    comparison = compare(table)
    ratios = [one for one in comparison.findings if one.row.kind == "ratio"]
    shown = intervals._most_telling(ratios, [RATE, LATENCY])
    metrics = [finding.row.metric for finding in shown]
    assert len(shown) <= intervals.MAXIMUM_LINES
    assert {metrics.count(metric) for metric in metrics} == {8}
    assert {RATE, LATENCY} <= set(metrics)
    drawing = intervals.forest(Evidence(comparison))
    assert drawing is not None
    assert f"{len(shown)} of {len(ratios)} lines" in drawing.caption


def test_of_too_many_panels_the_headlines_come_first_and_it_is_said():
    table = frame(blocks=6)
    more = {f"custom/m{at}_seconds": np.linspace(1, 2, len(table)) for at in range(40)}
    evidence = _evidence(pd.concat([table, pd.DataFrame(more)], axis=1), ())
    assert f"first {canvas.EXAMPLES} of 46 panels" in runs.by_level(evidence).caption
    assert RATE in runs._headlines_first(evidence.comparison)[: canvas.MAXIMUM_PANELS]
