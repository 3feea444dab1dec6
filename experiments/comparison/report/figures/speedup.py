"""The speed-up of several workers over one against the ideal, a panel for every stratum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from experiments.comparison.report.figures.canvas import GRID, LEVELS, SOFT, Colours, Drawing, Scene, frame, paneled, plain_ticks
from experiments.comparison.verdicts.workers import Gain, gains

IDEAL, EXACT = "ideal", "exact gradients"
SPREAD = 0.06  # of an octave of workers: intervals of several compressions stand side by side


def speedups(scene: Scene) -> Drawing | None:
    found = gains(scene.comparison)
    series = list(dict.fromkeys(_series(one) for one in found))
    colours = {IDEAL: SOFT, **dict(zip(series, LEVELS, strict=False))}
    panels = [
        partial(_against_ideal, found=[one for one in found if one.stratum == stratum], colours=colours)
        for stratum in dict.fromkeys(one.stratum for one in found)
    ]
    caption = (
        "Images a second of all workers over those of one, geometric means over paired blocks with 95 % intervals; the grey line "
        "is the ideal, as many times as there are workers. Strong scaling shares a batch among the workers, weak scaling "
        "gives each a whole one: they stand in panels of their own."
    )
    return paneled("speedup", "Speed-up by workers", caption, colours, panels, panel_inches=2.5, a_row=2)


def _series(one: Gain) -> str:
    """The level without its number of workers: what is done with the gradients."""
    return one.level.partition(" ")[2] or EXACT


def _against_ideal(axes: Axes, found: Sequence[Gain], colours: Colours) -> None:
    counts = sorted({1, *(one.workers for one in found)})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.plot(counts, counts, color=colours[IDEAL], linewidth=1.0, linestyle="--", zorder=1)
    series = list(dict.fromkeys(_series(one) for one in found))
    for at, name in enumerate(series):
        shift = 2.0 ** (SPREAD * (at - (len(series) - 1) / 2))
        own = sorted((one for one in found if _series(one) == name), key=lambda one: one.workers)
        places, values = [1, *(one.workers * shift for one in own)], [1.0, *(one.speedup.value for one in own)]
        axes.plot(places, values, color=colours[name], linewidth=1.5, marker="o", markersize=4, zorder=3)
        bounded = [(place, one.speedup) for place, one in zip(places[1:], own, strict=True) if one.bounded]
        if bounded:
            at_workers, intervals = zip(*bounded, strict=True)
            lows, highs = [one.low for one in intervals], [one.high for one in intervals]
            axes.vlines(at_workers, lows, highs, color=colours[name], linewidth=1.6, alpha=0.6, capstyle="projecting", zorder=2)
    frame(axes, "speed-up", found[0].stratum, "× one worker")
    plain_ticks(axes.xaxis, counts)
    plain_ticks(axes.yaxis, counts, "{:g}×")
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_xlabel("workers")
