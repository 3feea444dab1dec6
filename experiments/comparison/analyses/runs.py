"""The runs themselves: every value over boxes and in order of time, where they ran, which were left out, and all by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import remarks, tables, wording
from experiments.comparison.report.canvas import (
    GRID,
    JOIN,
    MAXIMUM_PANELS,
    PANELS_A_ROW,
    Colours,
    Drawing,
    at_most,
    frame,
    log_ticks,
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

Painter = Callable[["Axes", Sequence[Value], float, Colours], None]
# A page lists no more runs than that; all stand in MLflow.
MAX_RUNS = 2_000
# Quartiles of fewer values would be a box around two of them.
MINIMUM_FOR_A_BOX = 5
MAXIMUM_TICK_LETTERS = 34
CROWDED = 12
MANY = 200
MAXIMUM_BLOCKS = 30
# Where the greatest value is that many times the least, a linear axis shows the small ones as nothing.
WIDE = 30.0


def by_level(evidence: Evidence) -> Drawing | None:
    blocks = _most(
        len({(value.block, value.group) for value in values})
        for values in _by_stratum(evidence.comparison)
    )
    caption = (
        "A dot is a run; the box holds the middle half of a level’s runs, its line is their median (from "
        f"{MINIMUM_FOR_A_BOX} runs on). Runs of one block are joined: "
        "if all lines lean alike, no single block made the difference."
    )
    if blocks > MAXIMUM_BLOCKS:
        caption += f" {MAXIMUM_BLOCKS} of {blocks} blocks are shown, evenly over time; the boxes are those of all."
    return _values(
        "blocks",
        "Every run, those of one block joined",
        caption,
        evidence,
        _headlines_first(evidence.comparison),
        _paint_levels,
    )


def in_order(evidence: Evidence) -> Drawing | None:
    caption = "The same runs in the order in which they ran. A slope is the machine's drift; random order lets it meet all alike."
    metrics = _headlines(evidence.comparison)[:PANELS_A_ROW]
    return _values("order", "Every run, in order of time", caption, evidence, metrics, _paint_order)


def _headlines(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(finding.row.metric for finding in wording.headlines(comparison)))


def _headlines_first(comparison: Comparison) -> list[str]:
    """All metrics in the report's order; where there are more than panels, the headlines and what comes next before the rest."""
    strata = _most(len({value.group for value in values}) for values in comparison.values.values())
    fitting = max(1, MAXIMUM_PANELS // max(1, strata))
    first = list(dict.fromkeys([*_headlines(comparison), *comparison.values]))[:fitting]
    return sorted(comparison.values, key=lambda metric: metric not in first)


def _by_stratum(comparison: Comparison) -> Iterator[list[Value]]:
    for values in comparison.values.values():
        for stratum in {value.group for value in values}:
            yield [value for value in values if value.group == stratum]


def _most(counts: Iterable[int]) -> int:
    return max(counts, default=0)


def _values(
    name: str, title: str, caption: str, evidence: Evidence, metrics: Sequence[str], paint: Painter
) -> Drawing | None:
    """One panel an outcome and stratum that was asked for; its campaigns share it."""
    comparison = evidence.comparison
    outcomes = {finding.row.metric: finding.outcome for finding in comparison.findings}
    panels = [
        partial(
            _panel,
            paint=paint,
            outcome=outcomes[metric],
            stratum=stratum,
            values=comparison.values[metric],
            colours=evidence.colours,
        )
        for metric in metrics
        if metric in outcomes
        for stratum in sorted({value.group for value in comparison.values[metric]}, key=natural)
    ]
    return paneled(name, title, caption, evidence.colours, panels, maximum=MAXIMUM_PANELS)


def _panel(
    axes: Axes,
    paint: Painter,
    outcome: Outcome,
    stratum: str,
    values: Sequence[Value],
    colours: Colours,
) -> None:
    inside = [value for value in values if value.group == stratum]
    scale = wording.scale(outcome.unit, [value.value for value in inside])
    least, greatest = (end(value.value for value in inside) for end in (min, max))
    wide = outcome.kind == "ratio" and greatest > WIDE * least > 0
    axes.set_yscale("log" if wide else "linear")
    paint(axes, inside, scale.factor, colours)
    frame(axes, outcome.label, stratum, unit_of(outcome, scale.unit))
    if wide:
        plain_ticks(axes.yaxis, log_ticks(*axes.get_ylim()))


def _paint_levels(axes: Axes, values: Sequence[Value], factor: float, colours: Colours) -> None:
    places = {level: at for at, level in enumerate(colours)}
    blocks = _shown_blocks(values, places)
    crowded = len(blocks) > CROWDED
    # the same small shift for a whole block, so that its line is straight and its dots lie beside the others'
    shifts = [0.08 * (at % 5 - 2) if len(blocks) > 1 else 0.0 for at in range(len(blocks))]
    dots: dict[str, list[tuple[float, float]]] = {level: [] for level in places}
    lines: list[tuple[float, float]] = []
    for inside, shift in zip(blocks, shifts, strict=True):
        for value in inside:
            dots[value.level].append((places[value.level] + shift, value.value / factor))
            lines.append(dots[value.level][-1])
        lines.append((np.nan, np.nan))
    axes.plot(
        *zip(*lines, strict=True),
        color=JOIN,
        linewidth=0.7,
        alpha=0.5 if crowded else 0.9,
        zorder=1,
    )
    for level, at in dots.items():
        _dots(axes, at, colours[level], 2.6 if crowded else 3.4)
        _box(
            axes,
            [value.value / factor for value in values if value.level == level],
            places[level],
            colours[level],
        )
    axes.set_xlim(-0.6, len(places) - 0.4)
    short = len(places) * max(map(len, places)) <= MAXIMUM_TICK_LETTERS
    axes.set_xticks(range(len(places)) if short else [], list(places) if short else [])
    axes.tick_params(axis="x", length=0)


def _dots(axes: Axes, dots: Sequence[tuple[float, float]], colour: str, size: float) -> None:
    # not a scatter: markers of one line are drawn several times faster
    if dots:
        axes.plot(
            *zip(*dots, strict=True),
            marker="o",
            markersize=size,
            markeredgewidth=0,
            linestyle="",
            color=colour,
            zorder=3,
        )


def _shown_blocks(values: Sequence[Value], places: Mapping[str, int]) -> list[list[Value]]:
    """Blocks with their values in the levels' order; of very many, some, evenly over time."""
    blocks: dict[str, list[Value]] = {}
    for value in values:
        blocks.setdefault(value.block, []).append(value)
    return [
        sorted(inside, key=lambda value: places[value.level])
        for inside in evenly(list(blocks.values()), MAXIMUM_BLOCKS)
    ]


def _box(axes: Axes, values: Sequence[float], place: float, colour: str) -> None:
    if len(values) < MINIMUM_FOR_A_BOX:
        return
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), method="median_unbiased")
    left, right = place - 0.32, place + 0.32
    axes.bar(
        place, high - low, right - left, bottom=low, color=colour, alpha=0.16, linewidth=0, zorder=2
    )
    axes.plot(
        [left, right],
        [middle, middle],
        color=colour,
        linewidth=1.6,
        zorder=2,
        solid_capstyle="butt",
    )


def _paint_order(axes: Axes, values: Sequence[Value], factor: float, colours: Colours) -> None:
    places = [(float(value.sequence), value.value / factor) for value in values]
    axes.plot(*zip(*places, strict=True), color=GRID, linewidth=0.9, zorder=1)
    for level, colour in colours.items():
        inside = [
            place for value, place in zip(values, places, strict=True) if value.level == level
        ]
        _dots(axes, inside, colour, 3.8 if len(values) < MANY else 2.4)
    at_most(axes.xaxis, 5, whole=True)
    axes.set_xlabel("run, in the order of their beginnings")


def table(evidence: Evidence) -> list[Section]:
    """Return every run that counts, with its value of each headline, in the order in which they began."""
    values, link = evidence.comparison.values, evidence.link
    headlines = {one.row.metric: one.outcome for one in wording.headlines(evidence.comparison)}
    first = {one.run: one for of_metric in values.values() for one in of_metric}
    if not first or len(first) > MAX_RUNS:
        return []
    by_run = {
        metric: {one.run: one.value for one in values.get(metric, ())} for metric in headlines
    }
    strata = len({one.group for one in first.values()}) > 1
    header: Header = (
        *("run", evidence.comparison.factor, *(["stratum"] if strata else []), "block"),
        *(number(one.label) for one in headlines.values()),
    )
    rows: list[Line] = [
        (
            Cell(run, link=link(run)),
            *(one.level, *([one.group] if strata else []), one.block),
            *(
                wording.quantity(by_run[metric].get(run), outcome)
                for metric, outcome in headlines.items()
            ),
        )
        for run, one in sorted(first.items(), key=lambda item: item[1].sequence)
    ]
    return [
        Section(
            "Every run that counts", "In the order in which they began.", header, rows, folded=True
        )
    ]


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
    figures={70: by_level, 140: in_order},
)
