"""Runs of a comparison: every value over boxes, environments, excluded runs and all by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import remarks, tables, wording
from experiments.comparison.report.canvas import (
    JOIN,
    MAXIMUM_PANELS,
    Colours,
    Drawing,
    frame,
    paneled,
    plain_ticks,
    unit_of,
)
from experiments.comparison.report.sections import Cell, Header, Line, Section
from experiments.comparison.report.tables import number
from experiments.comparison.runs.environment import Value
from experiments.comparison.runs.pairing import natural
from experiments.comparison.runs.raw import evenly
from experiments.comparison.verdicts import busy
from experiments.comparison.verdicts.findings import Comparison
from experiments.metrics import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Most runs that a page lists; all are in MLflow.
MAX_RUNS = 2_000
# Quartiles of fewer values would be a box around two of them.
MINIMUM_FOR_A_BOX = 5
MAXIMUM_TICK_LETTERS = 34
MAXIMUM_BLOCKS = 30
# Ratio of the greatest to the least value from which a linear axis would hide the small ones.
WIDE = 30.0


def by_level(evidence: Evidence) -> Drawing | None:
    """Return a panel for every outcome and stratum, with every run of every level."""
    comparison = evidence.comparison
    outcomes = {finding.row.metric: finding.outcome for finding in comparison.findings}
    panels, most_blocks = [], 0
    for metric in _headlines_first(comparison):
        values = comparison.values[metric]
        for stratum in sorted({value.group for value in values}, key=natural):
            inside = [value for value in values if value.group == stratum]
            most_blocks = max(most_blocks, len({value.block for value in inside}))
            if metric in outcomes:
                panels.append(
                    partial(
                        _panel,
                        outcome=outcomes[metric],
                        stratum=stratum,
                        values=inside,
                        colours=evidence.colours,
                    )
                )
    caption = (
        "A dot is a run; the box holds the middle half of a level’s runs, its line is their "
        f"median (from {MINIMUM_FOR_A_BOX} runs on). Runs of one block are joined: if all lines "
        "lean alike, no single block made the difference."
    )
    if most_blocks > MAXIMUM_BLOCKS:
        caption += (
            f" {MAXIMUM_BLOCKS} of {most_blocks} blocks are shown, evenly over time; the boxes "
            "are those of all."
        )
    title = "Every run, those of one block joined"
    return paneled("blocks", title, caption, evidence.colours, panels)


def _headlines_first(comparison: Comparison) -> list[str]:
    """Return all metrics in the report's order; headlines first if not all have a panel."""
    groups = (len({value.group for value in values}) for values in comparison.values.values())
    fitting = MAXIMUM_PANELS // max(1, *groups, 1) or 1
    headlines = [finding.row.metric for finding in wording.headlines(comparison)]
    first = list(dict.fromkeys([*headlines, *comparison.values]))[:fitting]
    return sorted(comparison.values, key=lambda metric: metric not in first)


def _panel(
    axes: Axes, outcome: Outcome, stratum: str, values: Sequence[Value], colours: Colours
) -> None:
    numbers = [value.value for value in values]
    scale = wording.scale(outcome.unit, numbers)
    wide = outcome.kind == "ratio" and max(numbers) > WIDE * min(numbers) > 0
    axes.set_yscale("log" if wide else "linear")
    _paint_levels(axes, values, scale.factor, colours)
    frame(axes, outcome.label, stratum, unit_of(outcome, scale.unit))
    if wide:
        plain_ticks(axes.yaxis)


def _paint_levels(axes: Axes, values: Sequence[Value], factor: float, colours: Colours) -> None:
    places = {level: place for place, level in enumerate(colours)}
    by_block: dict[str, list[Value]] = {}
    for value in values:
        by_block.setdefault(value.block, []).append(value)
    dots: dict[str, list[tuple[float, float]]] = {level: [] for level in places}
    for count, block in enumerate(evenly(list(by_block.values()), MAXIMUM_BLOCKS)):
        # The same small shift for a whole block: its line is straight, its dots do not overlap.
        shift = 0.08 * (count % 5 - 2) if len(by_block) > 1 else 0.0
        ordered = sorted(block, key=lambda value: places[value.level])
        line = [(places[value.level] + shift, value.value / factor) for value in ordered]
        axes.plot(*zip(*line, strict=True), color=JOIN, linewidth=0.7, alpha=0.7, zorder=1)
        for value, dot in zip(ordered, line, strict=True):
            dots[value.level].append(dot)
    for level, points in dots.items():
        style: Any = {"marker": "o", "markersize": 3, "markeredgewidth": 0, "linestyle": ""}
        axes.plot(*np.array(points).reshape(-1, 2).T, color=colours[level], zorder=3, **style)
        inside = [value.value / factor for value in values if value.level == level]
        if len(inside) >= MINIMUM_FOR_A_BOX:
            _box(axes, inside, places[level], colours[level])
    axes.set_xlim(-0.6, len(places) - 0.4)
    short = len(places) * max(map(len, places)) <= MAXIMUM_TICK_LETTERS
    axes.set_xticks(range(len(places)) if short else [], list(places) if short else [])
    axes.tick_params(axis="x", length=0)


def _box(axes: Axes, values: Sequence[float], place: float, colour: str) -> None:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), method="median_unbiased")
    axes.bar(place, high - low, 0.64, bottom=low, color=colour, alpha=0.16, linewidth=0, zorder=2)
    axes.hlines(middle, place - 0.32, place + 0.32, color=colour, linewidth=1.6, zorder=2)


def table(evidence: Evidence) -> list[Section]:
    """Return the usable runs with their value of each headline, in order of their start."""
    values = evidence.comparison.values
    headlines = {
        finding.row.metric: finding.outcome for finding in wording.headlines(evidence.comparison)
    }
    runs = {value.run: value for of_metric in values.values() for value in of_metric}
    if not runs or len(runs) > MAX_RUNS:
        return []
    by_run = {
        metric: {value.run: value.value for value in values.get(metric, ())} for metric in headlines
    }
    several = len({value.group for value in runs.values()}) > 1
    strata = ("stratum",) if several else ()
    labels = [number(outcome.label) for outcome in headlines.values()]
    header: Header = ("run", evidence.comparison.factor, *strata, "block", *labels)
    rows: list[Line] = []
    for run, value in sorted(runs.items(), key=lambda item: item[1].sequence):
        cells = [
            wording.quantity(by_run[metric].get(run), outcome)
            for metric, outcome in headlines.items()
        ]
        stratum = (value.group,) if several else ()
        rows.append(
            (Cell(run, link=evidence.link(run)), value.level, *stratum, value.block, *cells)
        )
    caption = "In the order in which they began."
    return [Section("Every run that counts", caption, header, rows, folded=True)]


ANALYSIS = Analysis(
    warnings={
        0: lambda evidence: busy.warning(evidence.comparison.findings),
        10: lambda evidence: remarks.on_eager(evidence.comparison.environment),
    },
    tables={
        160: lambda evidence: [tables.environment(evidence.comparison)],
        170: lambda evidence: [tables.excluded(evidence.comparison, evidence.link)],
        180: table,
    },
    figures={70: by_level},
)
