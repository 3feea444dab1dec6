"""Where a training step's time went, by each framework's own profiler: shown, not judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.canvas import (
    GRID,
    INK,
    LABEL_WIDTH,
    Drawing,
    frame,
    paneled,
    shortened,
)
from experiments.comparison.report.sections import Column, Header, Line, Section
from experiments.comparison.report.tables import decimal, number
from experiments.comparison.runs.pairing import natural
from experiments.comparison.verdicts.findings import Comparison
from experiments.metrics import PROFILED, outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEP = f"{PROFILED}step_seconds"
# Of a step, in the order in which they are shown; they add up to it.
PARTS = {
    "op": "operators or kernels",
    "copy": "copies",
    "unrecorded": "unrecorded",
    "dispatch": "framework",
    "python": "Python",
}
GAPS = ("dispatch", "python")
COLOURS = {
    "op": "#2f6db3",
    "copy": "#2aa1b3",
    "unrecorded": "#a9c4e4",
    "dispatch": "#d9792b",
    "python": "#b8434e",
}
MAXIMUM = 12
NOT_COUNTED = "not counted"


@dataclass(frozen=True)
class Breakdown:
    """The profiled runs of one level in one stratum, each value a mean over them, so that the parts still add up.

    seconds: of a step, by part. input_seconds: waited for a batch, beside the step. ops, launches: of a step; None where they
    cannot be counted. cost: a profiled step over one that is not, None where the steps of any run do not show one.
    """

    stratum: str
    level: str
    n_runs: int
    seconds: Mapping[str, float]
    input_seconds: float
    ops: float | None
    launches: float | None
    cost: float | None

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def gap_share(self) -> float:
        """In which no operator and no kernel ran, as far as the profiler shows, 0…1."""
        return sum(map(self.share, GAPS))

    def share(self, part: str) -> float:
        """Of the step, 0…1."""
        return self.seconds[part] / self.step_seconds


def breakdowns(comparison: Comparison) -> list[Breakdown]:
    """Every stratum that has profiled runs, level by level."""
    runs = comparison.profiled.get(STEP, ())
    strata = sorted({one.stratum for one in runs}, key=natural)
    return [
        _mean(comparison, stratum, level)
        for stratum in strata
        for level in comparison.levels
        if any((one.stratum, one.level) == (stratum, level) for one in runs)
    ]


def _mean(comparison: Comparison, stratum: str, level: str) -> Breakdown:
    def values(name: str) -> list[float]:
        of_runs = comparison.profiled.get(f"{PROFILED}{name}", ())
        return [one.value for one in of_runs if (one.stratum, one.level) == (stratum, level)]

    def mean(name: str) -> float | None:
        found = values(name)
        return float(np.mean(found)) if found else None

    runs, costs = values("step_seconds"), values("profiler_cost_ratio")
    return Breakdown(
        stratum,
        level,
        len(runs),
        {part: mean(f"{part}_seconds") or 0.0 for part in PARTS},
        mean("input_seconds") or 0.0,
        mean("ops_per_step"),
        mean("launches_per_step"),
        float(np.mean(costs)) if len(costs) == len(runs) and min(costs) > 1 else None,
    )


def table(evidence: Evidence) -> list[Section]:
    """Where the time of a step went, in the runs that were profiled; nothing where none was."""
    found = breakdowns(evidence.comparison)
    several_strata = len({one.stratum for one in found}) > 1
    first: list[str | Column] = [Column("stratum", once=True)] if several_strata else []
    header: Header = (
        *(*first, evidence.comparison.factor, number("step")),
        *(*map(number, PARTS.values()), number("gaps")),
        *map(
            number, ("operators a step", "launches a step", "wait for input", "cost of profiling")
        ),
    )
    rows: list[Line] = [((one.stratum,) if several_strata else ()) + _cells(one) for one in found]
    caption = (
        "Steps under each framework’s own profiler, made after everything was measured; none of them is judged. Means "
        "over the profiled runs. A moment of a step belongs to the first column that goes on then: operators on the CPU "
        "or kernels on a GPU; copies; code that runs operators which the profiler does not show one by one; other code of "
        "the framework; the rest is Python. The last two are the gaps, in which no operator ran. Operators a step: those "
        "that compute, and inside of which no other ran. The wait for input lies between steps. Cost of profiling: a "
        "profiled step over the same step without the profiler in the same process, in every profiled run; “—”: in some "
        "run the steps do not show one. It has made some part longer. Traces are artifacts of the runs (profile/)."
    )
    return [Section("Where a step's time goes", caption, header, rows)] if rows else []


def _cells(one: Breakdown) -> tuple[str, ...]:
    seconds = outcome("train/step_seconds")
    return (
        *(one.level, wording.quantity(one.step_seconds, seconds)),
        *(f"{100 * share:.1f} %" for share in (*map(one.share, PARTS), one.gap_share)),
        *(
            NOT_COUNTED if one.ops is None else decimal(one.ops, "{:,.0f}"),
            decimal(one.launches, "{:,.0f}"),
        ),
        *(wording.quantity(one.input_seconds, seconds), decimal(one.cost, "{:.2f}×")),
    )


def figure(evidence: Evidence) -> Drawing | None:
    found = breakdowns(evidence.comparison)
    panels = [
        partial(_bars, bars=[one for one in found if one.stratum == stratum])
        for stratum in dict.fromkeys(one.stratum for one in found)
    ]
    caption = (
        "Time of a step under each framework’s own profiler, means over the profiled runs; what profiling cost stands in the "
        "table. Framework and Python are the gaps, in which no operator ran."
    )
    colours = {label: COLOURS[part] for part, label in PARTS.items()}
    most = max(
        (
            len([one for one in found if one.stratum == stratum])
            for stratum in {one.stratum for one in found}
        ),
        default=0,
    )
    height = 0.9 + 0.28 * most
    return paneled(
        "profile",
        "Where a step's time goes",
        caption,
        colours,
        panels,
        panel_inches=height,
        a_row=2,
        maximum=MAXIMUM,
    )


def _bars(axes: Axes, bars: Sequence[Breakdown]) -> None:
    scale = wording.scale("s", [one.step_seconds for one in bars])
    places = range(len(bars))
    ends = [0.0] * len(bars)
    for part in PARTS:
        widths = [one.seconds[part] / scale.factor for one in bars]
        axes.barh(places, widths, left=ends, height=0.62, color=COLOURS[part], linewidth=0)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    frame(axes, "a training step", bars[0].stratum, "")
    axes.set_yticks(list(places), [shortened(one.level, LABEL_WIDTH) for one in bars], color=INK)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_xlabel(f"time, {scale.unit}")


ANALYSIS = Analysis(tables={50: table}, figures={90: figure})
