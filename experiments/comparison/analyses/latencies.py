"""Latencies of single requests, run by run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.canvas import (
    GRID,
    Colours,
    Drawing,
    paneled,
    plain_ticks,
    where,
)
from experiments.comparison.runs.pairing import natural
from experiments.comparison.runs.raw import RawRun, median_percentiles, of_inference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = {0.5: "o", 0.95: "s", 0.99: "D"}
SHARES = (0.01, 0.1, 0.5, 0.9, 0.95, 0.99)


def figure(evidence: Evidence) -> Drawing | None:
    """Return the distribution of latencies, a panel for each stratum and batch size."""
    groups: dict[tuple[str, int], list[RawRun]] = {}
    for run in evidence.raw:
        for size, phase in of_inference(run).items():
            if len(phase.measured) > 1:
                groups.setdefault((run.stratum, size), []).append(run)
    panels = [
        partial(_ecdf, runs=runs, size=size, colours=evidence.colours, stratum=stratum)
        for (stratum, size), runs in sorted(
            groups.items(), key=lambda item: (natural(item[0][0]), item[0][1])
        )
    ]
    caption = (
        f"The share of requests answered within a time; a line is a run ({evidence.of_runs} are "
        "shown, warm-up left out). The vertical scale is stretched towards both ends, where the "
        "slow requests are. Marks: the median over runs of the p50 (round), p95 (square) and p99 "
        "(diamond), of runs with enough requests for it."
    )
    title = "Latency of single requests"
    return paneled("latencies", title, caption, evidence.colours, panels, panel_inches=2.7)


def _ecdf(axes: Axes, runs: Sequence[RawRun], size: int, colours: Colours, stratum: str) -> None:
    phases = [(run.level, of_inference(run)[size]) for run in runs]
    scale = wording.scale("s", [float(np.median(phase.measured)) for _, phase in phases])
    axes.set_yscale("logit")
    for level, phase in phases:
        count = len(phase.measured)
        shares = (np.arange(count) + 0.5) / count
        seconds = np.sort(phase.measured) / scale.factor
        axes.plot(
            seconds, shares, color=colours[level], linewidth=0.8, alpha=0.6, rasterized=count > 500
        )
    for level, colour in colours.items():
        of_level = [phase for name, phase in phases if name == level]
        for q, value in median_percentiles(of_level, tuple(MARKERS)).items():
            style: Any = {"marker": MARKERS[q], "color": colour, "edgecolors": "white"}
            axes.scatter(value / scale.factor, q, s=30, zorder=4, **style)
    axes.set_ylim(0.007, max(0.993, 1 - 0.5 / max(len(phase.measured) for _, phase in phases)))
    plain_ticks(axes.yaxis, SHARES)
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    axes.set_xlabel(f"latency, {scale.unit}")
    axes.set_title("\n".join([f"inference, batch {size}", *where(stratum)]))
    axes.set_ylabel("share of requests")
    axes.grid(color=GRID, linewidth=0.6)
    axes.grid(visible=False, which="minor")


ANALYSIS = Analysis(figures={80: figure})
