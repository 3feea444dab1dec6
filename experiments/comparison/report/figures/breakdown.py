"""Where a training step's time went: a stacked bar for every level, a panel for every stratum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from experiments.comparison.report import wording
from experiments.comparison.report.figures.canvas import GRID, INK, LABEL_WIDTH, Drawing, Scene, frame, paneled, shortened
from experiments.comparison.verdicts.breakdown import Breakdown, breakdowns

COLOURS = {"op": "#2f6db3", "copy": "#2aa1b3", "unrecorded": "#a9c4e4", "dispatch": "#d9792b", "python": "#b8434e"}
MAXIMUM = 12


def of_steps(scene: Scene) -> Drawing | None:
    found = breakdowns(scene.comparison)
    panels = [
        partial(_bars, bars=[one for one in found if one.stratum == stratum])
        for stratum in dict.fromkeys(one.stratum for one in found)
    ]
    caption = (
        "Time of a step under each framework’s own profiler, means over the profiled runs; what profiling cost stands in the "
        "table. Framework and Python are the gaps, in which no operator ran."
    )
    colours = {label: COLOURS[part] for part, label in wording.PARTS.items()}
    most = max((len([one for one in found if one.stratum == stratum]) for stratum in {one.stratum for one in found}), default=0)
    height = 0.9 + 0.28 * most
    return paneled("profile", "Where a step's time goes", caption, colours, panels, panel_inches=height, a_row=2, maximum=MAXIMUM)


def _bars(axes: Axes, bars: Sequence[Breakdown]) -> None:
    scale = wording.scale("s", [one.step_seconds for one in bars])
    places = range(len(bars))
    ends = [0.0] * len(bars)
    for part in wording.PARTS:
        widths = [one.seconds[part] / scale.factor for one in bars]
        axes.barh(places, widths, left=ends, height=0.62, color=COLOURS[part], linewidth=0)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    frame(axes, "a training step", bars[0].stratum, "")
    axes.set_yticks(list(places), [shortened(one.level, LABEL_WIDTH) for one in bars], color=INK)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_xlabel(f"time, {scale.unit}")
