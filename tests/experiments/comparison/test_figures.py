"""Figures: drawn where there is something to show, and only there; what a report says of steps, controls and papers."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from experiments.comparison import analyses, compare
from experiments.comparison.analyses import Evidence, intervals, latencies, runs
from experiments.comparison.judgement import write
from experiments.comparison.report import canvas
from experiments.comparison.verdicts.findings import Control
from tests.experiments.comparison.campaigns import LATENCY, RATE, STEP, frame
from tests.experiments.comparison.steps import raw_runs
from tests.experiments.comparison.test_batch_sizes import _with_inference, _workloads
from tests.experiments.comparison.test_report import _checked


def _drawn(
    table: pd.DataFrame, *, strata: tuple[str, ...] = (), raw=()
) -> dict[str, canvas.Figure]:
    evidence = Evidence(compare(table, strata=strata), table, raw)
    return {one.name: canvas.made(one) for one in analyses.drawings(evidence)}


def test_without_steps_there_are_the_figures_of_runs():
    assert list(_drawn(frame())) == ["forest", "differences", "blocks", "memory", "order"]


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
    names = ["forest", "differences", "blocks", "latencies", "batches", "memory", "ranks", "order"]
    assert list(found) == names
    for one in found.values():
        ET.fromstring(one.svg)
        assert one.png.startswith(b"\x89PNG")
        assert "nan" not in re.sub(r"[^ ]*base64,[^ ]*", "", one.svg).lower()


def _evidence(table: pd.DataFrame, raw=()) -> Evidence:
    return Evidence(compare(table), table, raw)


def test_no_requests_no_figure():
    table = frame()
    without = [replace(run, phases={"train": run.phases["train"]}) for run in raw_runs(table)]
    evidence = _evidence(table, without)
    assert latencies.figure(evidence) is None


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


def test_of_very_many_blocks_some_are_shown_and_boxes_are_those_of_all():
    comparison = compare(frame(blocks=100))
    axes = _axes()
    runs._paint_levels(axes, comparison.values[STEP], 1.0, canvas.colours_of(comparison.levels))
    assert (
        sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() == "o")
        == 2 * runs.MAXIMUM_BLOCKS
    )
    of_first = [
        value.value for value in comparison.values[STEP] if value.level == comparison.levels[0]
    ]
    low, high = np.quantile(of_first, (0.25, 0.75), method="median_unbiased")
    assert axes.patches[0].get_y() == pytest.approx(low)
    assert axes.patches[0].get_height() == pytest.approx(high - low)


def test_marks_stand_at_the_earned_percentiles_alone():
    table = frame(blocks=2)
    for requests, marks in ((400, 3), (100, 2), (20, 1)):
        axes = _axes()
        found = [run for run in raw_runs(table, requests=requests) if run.level == "pytorch"]
        latencies._ecdf(axes, found, 1, {"pytorch": "#000000"}, "")
        assert len(axes.collections) == marks
        assert len(axes.lines) == 2


@pytest.mark.parametrize("top", [3.0, 3e7])
def test_a_title_stands_clear_of_its_axes_and_of_a_power_of_ten_above_them(top: float):
    found: list[Axes] = []

    def paint(on: Canvas) -> None:
        found.append(on.add_subplot())
        found[0].plot([0, 1], [0, top])
        found[0].set_title("a title")

    canvas.made(canvas.Drawing("name", "title", "", 2.0, paint))
    power = found[0].yaxis.get_offset_text()
    assert bool(power.get_text()) == (top > 1e6)
    (title,) = found[0].findobj(lambda one: getattr(one, "get_text", str)() == "a title")
    below = power if power.get_text() else found[0].patch
    assert title.get_window_extent().y0 >= below.get_window_extent().y1


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
    evidence = Evidence(compare(table))
    shown, told = intervals._most_telling(evidence, "ratio")
    metrics = [finding.row.metric for finding in shown]
    assert len(shown) <= intervals.MAXIMUM_LINES
    assert {metrics.count(metric) for metric in metrics} == {8}
    assert {RATE, LATENCY} <= set(metrics)
    assert f"{len(shown)} of 192 lines" in told


def test_of_too_many_panels_the_headlines_come_first_and_it_is_said():
    table = frame(blocks=6)
    more = {f"custom/m{at}_seconds": np.linspace(1, 2, len(table)) for at in range(40)}
    evidence = _evidence(pd.concat([table, pd.DataFrame(more)], axis=1), ())
    assert f"first {canvas.EXAMPLES} of 46 panels" in runs.by_level(evidence).caption
    assert RATE in runs._headlines_first(evidence.comparison)[: canvas.MAXIMUM_PANELS]


# ---- the sections of a report that rest on steps


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A report with steps of which some never rest, two controls and the papers' procedure."""
    table = _with_inference(frame(blocks=8))
    raw = raw_runs(table, factors={"tensorflow": 1.05})
    drifting = raw[3].phases["train"]
    seconds = drifting.seconds * np.linspace(1, 1.4, len(drifting.seconds))
    raw[3] = replace(
        raw[3],
        run_id="the <drifting> one",
        phases={**raw[3].phases, "train": replace(drifting, seconds=seconds)},
    )
    raw[4] = replace(raw[4], phases={}, trouble="values.parquet cannot be read: <broken>")
    comparison = compare(table, baseline="pytorch")
    same = compare(frame(levels=["pytorch", "pytorch again"], seed=5), baseline="pytorch")
    slowed = compare(
        frame(levels=["pytorch", "slowed"], factors={"slowed": 1.05}), baseline="pytorch"
    )
    controls = (
        Control("A/A", same, "no difference"),
        Control("injected 5 %", slowed, "slower steps", 0.05),
    )
    comparison = replace(comparison, controls=controls)
    folder = tmp_path_factory.mktemp("told")
    path = write(Evidence(comparison, table, raw, protocol="paper"), folder, "A study")
    return path.read_text(encoding="utf-8"), (folder / "report.md").read_text(encoding="utf-8")


def test_the_page_with_everything_needs_nothing_from_outside(told):
    page, _ = told
    found = _checked(page)
    assert found.external == []
    assert "http" not in page
    assert len(found.ids) == len(set(found.ids))
    assert {one[1:] for one in found.references} <= set(found.ids)
    assert page.count("data:image/svg+xml;base64,") == 7


def test_runs_without_a_steady_state_are_counted_and_named(told):
    for text in told:
        assert "Was steady state reached?" in text
        assert "its steps drift" in text
    assert "the &lt;drifting&gt; one" in told[0]
    assert "&lt;broken&gt;" in told[0]
    assert "<broken>" not in told[1]
