"""Every run by its run-level values: over boxes, and in order of time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from experiments.comparison.report import wording
from experiments.comparison.report.figures import tips
from experiments.comparison.report.figures.canvas import (
    GRID,
    JOIN,
    MAXIMUM_PANELS,
    PANELS_A_ROW,
    Colours,
    Drawing,
    Scene,
    count_ticks,
    frame,
    log_ticks,
    paneled,
    plain_ticks,
    unit_of,
)
from experiments.comparison.report.figures.tips import Tip
from experiments.comparison.runs.environment import Value
from experiments.comparison.runs.pairing import natural
from experiments.comparison.runs.raw import evenly
from experiments.comparison.verdicts.findings import Comparison
from experiments.config.outcomes import Outcome

Painter = Callable[[Axes, Sequence[Value], float, Colours, "Told"], None]
Told = Callable[[Value], Tip]
# Quartiles of fewer values would be a box around two of them.
MINIMUM_FOR_A_BOX = 5
MAXIMUM_TICK_LETTERS = 34
CROWDED = 12
MANY = 200
MAXIMUM_BLOCKS = 30
# Where the greatest value is that many times the least, a linear axis shows the small ones as nothing.
WIDE = 30.0


def by_level(scene: Scene) -> Drawing | None:
    blocks = _most(len({(value.block, value.group) for value in values}) for values in _by_stratum(scene.comparison))
    caption = (
        "A dot is a run; the box holds the middle half of a level’s runs, its line is their median (from "
        f"{MINIMUM_FOR_A_BOX} runs on). Runs of one block are joined: "
        "if all lines lean alike, no single block made the difference."
    )
    if blocks > MAXIMUM_BLOCKS:
        caption += f" {MAXIMUM_BLOCKS} of {blocks} blocks are shown, evenly over time; the boxes are those of all."
    return _values(
        "blocks", "Every run, those of one block joined", caption, scene, _headlines_first(scene.comparison), _paint_levels
    )


def in_order(scene: Scene) -> Drawing | None:
    caption = "The same runs in the order in which they ran. A slope is the machine's drift; random order lets it meet all alike."
    metrics = _headlines(scene.comparison)[:PANELS_A_ROW]
    return _values("order", "Every run, in order of time", caption, scene, metrics, _paint_order)


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


def _values(name: str, title: str, caption: str, scene: Scene, metrics: Sequence[str], paint: Painter) -> Drawing | None:
    """One panel an outcome and stratum that was asked for; its campaigns share it."""
    comparison = scene.comparison
    outcomes = {finding.row.metric: finding.outcome for finding in comparison.findings}
    panels = [
        partial(
            _panel,
            paint=paint,
            outcome=outcomes[metric],
            stratum=stratum,
            values=comparison.values[metric],
            colours=scene.colours,
            anchors=scene.anchors,
        )
        for metric in metrics
        if metric in outcomes
        for stratum in sorted({value.group for value in comparison.values[metric]}, key=natural)
    ]
    return paneled(name, title, caption, scene.colours, panels, maximum=MAXIMUM_PANELS)


def _panel(
    axes: Axes,
    paint: Painter,
    outcome: Outcome,
    stratum: str,
    values: Sequence[Value],
    colours: Colours,
    anchors: Mapping[str, str],
) -> None:
    inside = [value for value in values if value.group == stratum]
    scale = wording.scale(outcome.unit, [value.value for value in inside])
    least, greatest = (end(value.value for value in inside) for end in (min, max))
    wide = outcome.kind == "ratio" and greatest > WIDE * least > 0
    axes.set_yscale("log" if wide else "linear")
    paint(axes, inside, scale.factor, colours, partial(_told, outcome=outcome, anchors=anchors))
    frame(axes, outcome.label, stratum, unit_of(outcome, scale.unit))
    if wide:
        plain_ticks(axes.yaxis, log_ticks(*axes.get_ylim()))


def _told(value: Value, outcome: Outcome, anchors: Mapping[str, str]) -> Tip:
    return Tip(f"{value.level}, block {value.block}: {wording.quantity(value.value, outcome)}", anchors.get(value.run, ""))


def _paint_levels(axes: Axes, values: Sequence[Value], factor: float, colours: Colours, told: Told) -> None:
    places = {level: at for at, level in enumerate(colours)}
    blocks = _shown_blocks(values, places)
    crowded = len(blocks) > CROWDED
    # the same small shift for a whole block, so that its line is straight and its dots lie beside the others'
    shifts = [0.08 * (at % 5 - 2) if len(blocks) > 1 else 0.0 for at in range(len(blocks))]
    dots: dict[str, list[tuple[Value, tuple[float, float]]]] = {level: [] for level in places}
    lines: list[tuple[float, float]] = []
    for inside, shift in zip(blocks, shifts, strict=True):
        found = [(value, (places[value.level] + shift, value.value / factor)) for value in inside]
        lines += [*(place for _, place in found), (np.nan, np.nan)]
        for value, place in found:
            dots[value.level].append((value, place))
    axes.plot(*zip(*lines, strict=True), color=JOIN, linewidth=0.7, alpha=0.5 if crowded else 0.9, zorder=1)
    for level, at in dots.items():
        if at:
            _dots(axes, at, colours[level], 2.6 if crowded else 3.4, told)
        _box(axes, [value.value / factor for value in values if value.level == level], places[level], colours[level])
    axes.set_xlim(-0.6, len(places) - 0.4)
    short = len(places) * max(map(len, places)) <= MAXIMUM_TICK_LETTERS
    axes.set_xticks(range(len(places)) if short else [], list(places) if short else [])
    axes.tick_params(axis="x", length=0)


def _dots(axes: Axes, dots: Sequence[tuple[Value, tuple[float, float]]], colour: str, size: float, told: Told) -> None:
    # not a scatter: markers of one line are drawn several times faster
    values, places = zip(*dots, strict=True)
    xs, ys = zip(*places, strict=True)
    (line,) = axes.plot(xs, ys, marker="o", markersize=size, markeredgewidth=0, linestyle="", color=colour, zorder=3)
    tips.put(line, list(map(told, values)))


def _shown_blocks(values: Sequence[Value], places: Mapping[str, int]) -> list[list[Value]]:
    """Blocks with their values in the levels' order; of very many, some, evenly over time."""
    blocks: dict[str, list[Value]] = {}
    for value in values:
        blocks.setdefault(value.block, []).append(value)
    return [sorted(inside, key=lambda value: places[value.level]) for inside in evenly(list(blocks.values()), MAXIMUM_BLOCKS)]


def _box(axes: Axes, values: Sequence[float], place: float, colour: str) -> None:
    if len(values) < MINIMUM_FOR_A_BOX:
        return
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), method="median_unbiased")
    left, right = place - 0.32, place + 0.32
    axes.bar(place, high - low, right - left, bottom=low, color=colour, alpha=0.16, linewidth=0, zorder=2)
    axes.plot([left, right], [middle, middle], color=colour, linewidth=1.6, zorder=2, solid_capstyle="butt")


def _paint_order(axes: Axes, values: Sequence[Value], factor: float, colours: Colours, told: Told) -> None:
    places = [(value, (float(value.sequence), value.value / factor)) for value in values]
    axes.plot(*zip(*(place for _, place in places), strict=True), color=GRID, linewidth=0.9, zorder=1)
    size = 3.8 if len(values) < MANY else 2.4
    for level, colour in colours.items():
        if inside := [(value, place) for value, place in places if value.level == level]:
            _dots(axes, inside, colour, size, told)
    count_ticks(axes.xaxis)
    axes.set_xlabel("run, in the order of their beginnings")
