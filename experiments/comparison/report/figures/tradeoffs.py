"""What one gives for the other: latency and throughput against batch size, throughput against memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from experiments.comparison.report import wording
from experiments.comparison.report.figures import tips
from experiments.comparison.report.figures.canvas import (
    BAD,
    GRID,
    INK,
    JOIN,
    Colours,
    Drawing,
    Scene,
    frame,
    log_ticks,
    paneled,
    plain_ticks,
    unit_of,
)
from experiments.comparison.report.figures.tips import Tip
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.batch_sizes import MARGIN, Curve
from experiments.comparison.verdicts.memory_limits import Edge
from experiments.comparison.verdicts.tradeoff import Spot, Tradeoff, tradeoffs

WIDE = 3.0
# Of an octave of batch sizes.
SPREAD = 0.2
ALL_RUNS = "all runs"


def batches(scene: Scene) -> Drawing | None:
    groups = dict.fromkeys((curve.what, curve.stratum) for curve in scene.curves)
    order = list(scene.colours)
    levels = sorted({curve.level for curve in scene.curves}, key=lambda level: order.index(level) if level in order else -1)
    colours = {level: scene.colours.get(level, INK) for level in levels}
    panels = []
    for what, stratum in groups:
        inside = [curve for curve in scene.curves if (curve.what, curve.stratum) == (what, stratum)]
        if any(point.seconds_per_example for curve in inside for point in curve.points):
            panels.append(partial(_against_size, curves=inside, colours=colours, of_time=True))
        panels.append(partial(_against_size, curves=inside, colours=colours, of_time=False))
    caption = (
        "Geometric means over runs with 95 % t intervals. A ring marks the limit: the smallest size that is shown to lie "
        f"within {wording.percent(MARGIN)} of the best one. The table below says what each limit rests on."
    )
    named = {level or ALL_RUNS: colour for level, colour in colours.items()}
    return paneled("batches", "Latency and throughput against batch size", caption, named, panels, panel_inches=2.5, a_row=2)


def _against_size(axes: Axes, curves: Sequence[Curve], colours: Colours, *, of_time: bool) -> None:
    unit = "s" if of_time else "1/s"
    found = [
        (curve, [(p.size, p.seconds_per_example if of_time else p.examples_per_second) for p in curve.points]) for curve in curves
    ]
    known = [(curve, [(size, one) for size, one in points if one is not None]) for curve, points in found]
    scale = wording.scale(unit, [one.value for _, points in known for _, one in points])
    sizes = sorted({size for _, points in known for size, _ in points})
    axes.set_xscale("log", base=2)
    for at, (curve, points) in enumerate(known):
        # side by side, so that intervals of levels that agree can be told apart
        shift = 2.0 ** (SPREAD * (at / (len(known) - 1) - 0.5)) if len(known) > 1 else 1.0
        name, shown_in = curve.level or ALL_RUNS, scale.unit if of_time else "examples/s"
        told = [Tip(f"{name}, batch {size}: {wording.number(one.value / scale.factor)} {shown_in}") for size, one in points]
        line = _line(axes, [size * shift for size, _ in points], [one for _, one in points], scale.factor, colours[curve.level])
        tips.put(line, told)
        for size, one in points:
            if size == curve.limit:
                axes.scatter(
                    [size * shift], [one.value / scale.factor], s=90, facecolors="none", edgecolors=INK, linewidths=1.1, zorder=4
                )
    values = [one.value / scale.factor for _, points in known for _, one in points]
    if max(values) / min(values) > WIDE:
        axes.set_yscale("log")
    title = f"{curves[0].what}: {'median time per example' if of_time else 'throughput'}"
    frame(axes, title, curves[0].stratum, scale.unit if of_time else "examples/s")
    if axes.get_yscale() == "log":
        plain_ticks(axes.yaxis, log_ticks(*axes.get_ylim()))
    plain_ticks(axes.xaxis, sizes)
    axes.set_xlabel("batch size, examples")


def _line(axes: Axes, xs: Sequence[float], estimates: Sequence[Estimate], factor: float, colour: str) -> Line2D:
    (line,) = axes.plot(
        xs, [one.value / factor for one in estimates], color=colour, linewidth=1.4, marker="o", markersize=4, zorder=3
    )
    ends = [(one.low / factor, one.high / factor) for one in estimates]
    bounded = [(x, low, high) for x, (low, high) in zip(xs, ends, strict=True) if low > 0 and high < float("inf")]
    if bounded:
        at, lows, highs = zip(*bounded, strict=True)
        axes.vlines(at, lows, highs, colors=colour, linewidth=2.4, alpha=0.5, capstyle="projecting", zorder=2)
    return line


def frontier(scene: Scene) -> Drawing | None:
    edges = scene.comparison.frontier
    if not edges:
        return None
    panels = [
        partial(
            _edges,
            edges=[edge for edge in edges if (edge.stratum, edge.phase) == place],
            colours=scene.colours,
            stratum=", ".join(filter(None, place)),
        )
        for place in dict.fromkeys((edge.stratum, edge.phase) for edge in edges)
    ]
    caption = "A bar ends at the largest batch that fitted, the cross is the smallest that ran out of memory."
    return paneled("frontier", "Where memory ends", caption, scene.colours, panels, panel_inches=1.6, a_row=2)


def _edges(axes: Axes, edges: Sequence[Edge], colours: Colours, stratum: str) -> None:
    sizes = sorted({size for edge in edges for size in (edge.fits, edge.too_large) if size})
    axes.set_xscale("log", base=2)
    for at, edge in enumerate(edges):
        colour = colours.get(edge.level, INK)
        if edge.fits:
            axes.plot([sizes[0] / 2, edge.fits], [at, at], color=colour, linewidth=6, solid_capstyle="butt", zorder=2)
        axes.scatter([edge.too_large], [at], marker="x", s=48, color=BAD, linewidths=1.8, zorder=3)
    frame(axes, "largest batch", stratum, "")
    plain_ticks(axes.xaxis, sizes)
    plain_ticks(axes.yaxis, [])
    axes.set_ylim(-0.6, len(edges) - 0.4)
    axes.set_xlabel("batch size, examples")


def memory(scene: Scene) -> Drawing | None:
    found = tradeoffs(scene.comparison)
    panels = [partial(_front, tradeoff=one, colours=scene.colours) for one in found]
    caption = (
        "Geometric means over runs with 95 % t intervals. Filled: on the Pareto front, no other level is faster with as little "
        "memory; hollow: another is at least as good in both. The front goes by means alone: what is certain, the verdicts say."
    )
    a_row = 2 if len(found) < 3 else 3
    return paneled(
        "memory",
        "Throughput against memory",
        caption,
        scene.colours,
        panels,
        panel_inches=2.7 if a_row == 2 else 2.2,
        a_row=a_row,
    )


def _front(axes: Axes, tradeoff: Tradeoff, colours: Colours) -> None:
    across = wording.scale(tradeoff.memory.unit, [spot.memory.value for spot in tradeoff.spots])
    up = wording.scale(tradeoff.rate.unit, [spot.rate.value for spot in tradeoff.spots])
    front = sorted((spot for spot in tradeoff.spots if spot.on_front), key=lambda spot: spot.memory.value)
    xs, ys = [spot.memory.value / across.factor for spot in front], [spot.rate.value / up.factor for spot in front]
    axes.plot(xs, ys, color=JOIN, linewidth=1.6, drawstyle="steps-post", zorder=1)
    _spots(axes, tradeoff, across.factor, up.factor, colours)
    frame(axes, tradeoff.rate.label, tradeoff.stratum, unit_of(tradeoff.rate, up.unit))
    axes.margins(x=0.15)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.set_xlabel(f"{tradeoff.memory.label}, {unit_of(tradeoff.memory, across.unit)}")
    axes.grid(axis="x", color=GRID, linewidth=0.6)


def _spots(axes: Axes, tradeoff: Tradeoff, across: float, up: float, colours: Colours) -> None:
    """All intervals of a kind as one artist, and all dots: Matplotlib lays out and draws few faster than many."""
    spots = tradeoff.spots
    xs, ys = [spot.memory.value / across for spot in spots], [spot.rate.value / up for spot in spots]
    edges = [colours[spot.level] for spot in spots]
    faces = [colour if spot.on_front else "white" for spot, colour in zip(spots, edges, strict=True)]
    rates, sizes = [(spot.rate, up) for spot in spots], [(spot.memory, across) for spot in spots]
    for lines, places, estimates in ((axes.vlines, xs, rates), (axes.hlines, ys, sizes)):
        found = [
            (at, one.low / factor, one.high / factor, colour)
            for at, (one, factor), colour in zip(places, estimates, edges, strict=True)
            if one.low > 0
        ]
        if found:
            at, lows, highs, tints = zip(*found, strict=True)
            lines(at, lows, highs, colors=tints, linewidth=1.2, alpha=0.6, capstyle="projecting", zorder=2)
    dots = axes.scatter(xs, ys, s=44, facecolors=faces, edgecolors=edges, linewidths=1.5, zorder=3)
    tips.put(dots, [_told(spot, tradeoff) for spot in spots])


def _told(spot: Spot, tradeoff: Tradeoff) -> Tip:
    seen = (wording.quantity(spot.rate.value, tradeoff.rate), wording.quantity(spot.memory.value, tradeoff.memory))
    return Tip(f"{spot.level}: {', '.join(seen)}")
