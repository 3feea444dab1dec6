"""Latencies of single requests, run by run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.canvas import (
    GRID,
    Colours,
    Drawing,
    log_ticks,
    paneled,
    plain_ticks,
    where,
)
from experiments.comparison.runs.pairing import natural
from experiments.comparison.runs.raw import Phase, RawRun, median_percentiles, of_inference
from experiments.comparison.statistics.estimates import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKED = {0.5: "o", 0.95: "s", 0.99: "D"}
MAXIMUM_VECTOR_POINTS = 3_000
POINTS_A_LINE = 120
WIDE = 3.0
SHARES = (0.01, 0.1, 0.5, 0.9, 0.95, 0.99)


def figure(evidence: Evidence) -> Drawing | None:
    panels = [
        partial(_ecdf, runs=runs, size=size, colours=evidence.colours, stratum=stratum)
        for stratum in sorted({run.stratum for run in evidence.raw}, key=natural)
        for size, runs in _by_size([run for run in evidence.raw if run.stratum == stratum]).items()
    ]
    caption = (
        f"The share of requests answered within a time; a line is a run ({evidence.of_runs} are shown, warm-up left out). "
        "The vertical scale is stretched towards both ends, where the slow requests are. Marks: the median over runs of the p50 "
        "(round), p95 (square) and p99 (diamond), of runs with enough requests for it."
    )
    return paneled(
        "latencies",
        "Latency of single requests",
        caption,
        evidence.colours,
        panels,
        panel_inches=2.7,
    )


def _by_size(runs: Sequence[RawRun]) -> dict[int, list[RawRun]]:
    found: dict[int, list[RawRun]] = {}
    for run in runs:
        for size, phase in of_inference(run).items():
            if len(phase.measured) > 1:
                found.setdefault(size, []).append(run)
    return dict(sorted(found.items()))


def _ecdf(axes: Axes, runs: Sequence[RawRun], size: int, colours: Colours, stratum: str) -> None:
    phases = [(run.level, of_inference(run)[size]) for run in runs]
    scale = wording.scale("s", [float(np.median(phase.measured)) for _, phase in phases])
    lines = [(level, *_steps(phase.measured / scale.factor)) for level, phase in phases]
    many = sum(len(xs) for _, xs, _ in lines) > MAXIMUM_VECTOR_POINTS
    for level, xs, shares in lines:
        alpha = 0.75 if len(lines) < 12 else 0.45
        axes.plot(xs, shares, color=colours[level], linewidth=0.8, alpha=alpha, rasterized=many)
    axes.set_yscale("logit")
    for level, colour in colours.items():
        _mark(axes, [phase for of, phase in phases if of == level], scale.factor, colour)
    axes.set_ylim(0.007, max(0.993, max(float(shares[-1]) for _, _, shares in lines)))
    plain_ticks(axes.yaxis, SHARES)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}".replace("%", " %"))
    _latency_axis(axes, scale.unit)
    axes.set_title("\n".join([f"inference, batch {size}", *where(stratum)]))
    axes.set_ylabel("share of requests")
    axes.grid(color=GRID, linewidth=0.6)
    axes.grid(visible=False, which="minor")


def _steps(values: Floats) -> tuple[Floats, Floats]:
    """Sorted values against their shares; of very many, those at evenly stretched shares."""
    ordered = np.sort(values)
    shares = (np.arange(len(ordered)) + 0.5) / len(ordered)
    if len(ordered) > POINTS_A_LINE:
        stretched = np.log(shares / (1 - shares))
        kept = np.unique(
            np.searchsorted(stretched, np.linspace(stretched[0], stretched[-1], POINTS_A_LINE))
        )
        ordered, shares = ordered[kept], shares[kept]
    return ordered, shares


def _mark(axes: Axes, phases: Sequence[Phase], factor: float, colour: str) -> None:
    for q, value in median_percentiles(phases, tuple(MARKED)).items():
        axes.scatter(
            [value / factor],
            [q],
            s=30,
            marker=MARKED[q],
            color=colour,
            edgecolors="white",
            linewidths=0.8,
            zorder=4,
        )


def _latency_axis(axes: Axes, unit: str) -> None:
    low, high = axes.get_xlim()
    low = max(low, min(float(line.get_xdata()[0]) for line in axes.lines))  # type: ignore[index, arg-type]
    if low > 0 and high / low > WIDE:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        plain_ticks(axes.xaxis, log_ticks(low, high))
    axes.set_xlabel(f"latency, {unit}")


ANALYSIS = Analysis(figures={80: figure})
