"""What happened inside the runs: latencies of single requests, power and temperature over time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.canvas import (
    BAND,
    GRID,
    INK,
    LABEL_WIDTH,
    MAXIMUM_PANELS,
    PANELS_A_ROW,
    Colours,
    Drawing,
    frame,
    log_ticks,
    paneled,
    plain_ticks,
    shortened,
    where,
)
from experiments.comparison.runs.pairing import natural
from experiments.comparison.runs.raw import Phase, RawRun, Series, median_percentiles, of_inference
from experiments.comparison.statistics.estimates import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKED = {0.5: "o", 0.95: "s", 0.99: "D"}
MAXIMUM_VECTOR_POINTS = 3_000
POINTS_A_LINE = 120
WIDE = 3.0
SHARES = (0.01, 0.1, 0.5, 0.9, 0.95, 0.99)


def latencies(evidence: Evidence) -> Drawing | None:
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
    return paneled("latencies", "Latency of single requests", caption, evidence.colours, panels, panel_inches=2.7)


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
        kept = np.unique(np.searchsorted(stretched, np.linspace(stretched[0], stretched[-1], POINTS_A_LINE)))
        ordered, shares = ordered[kept], shares[kept]
    return ordered, shares


def _mark(axes: Axes, phases: Sequence[Phase], factor: float, colour: str) -> None:
    for q, value in median_percentiles(phases, tuple(MARKED)).items():
        axes.scatter([value / factor], [q], s=30, marker=MARKED[q], color=colour, edgecolors="white", linewidths=0.8, zorder=4)


def _latency_axis(axes: Axes, unit: str) -> None:
    low, high = axes.get_xlim()
    low = max(low, min(float(line.get_xdata()[0]) for line in axes.lines))  # type: ignore[index, arg-type]
    if low > 0 and high / low > WIDE:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        plain_ticks(axes.xaxis, log_ticks(low, high))
    axes.set_xlabel(f"latency, {unit}")


# ---- sensors


def sensors(evidence: Evidence) -> Drawing | None:
    """A row of panels a sensor, a panel a level; all panels of a sensor have one scale."""
    keys = sorted({key for run in evidence.raw for key, series in run.sensors.items() if len(series.values) > 1}, key=_order)
    groups = _groups(evidence, len(keys))
    panels = []
    for key in keys:
        values = np.concatenate([run.sensors[key].values for run in evidence.raw if key in run.sensors])
        room = 0.06 * max(float(np.ptp(values)), 1.0)
        limits = (float(values.min()) - room, float(values.max()) + room)
        for (level, stratum), runs in groups.items():
            if having := [run for run in runs if key in run.sensors]:
                colour = evidence.colours.get(level, INK)
                of = [shortened(level, LABEL_WIDTH), *where(stratum)]
                panels.append(partial(_over_time, key=key, of=of, runs=having, colour=colour, limits=limits))
    shaded = any(run.warm_seconds is not None for run in evidence.raw)
    caption = (
        f"A line is a run, from its start to its end ({evidence.of_runs} are shown). "
        + (
            "Shaded: start-up and warm-up, to the median of the level’s runs. "
            if shaded
            else "Where warm-up ended is not known. "
        )
        + "Runs that begin hot and end hotter warm each other."
    )
    a_row = len(groups) if len(groups) in (2, 3) else PANELS_A_ROW
    return paneled(
        "sensors", "Power and temperature over time", caption, evidence.colours, panels, a_row=a_row, maximum=MAXIMUM_PANELS
    )


def _groups(evidence: Evidence, n_keys: int) -> dict[tuple[str, str], list[RawRun]]:
    """Runs by level and stratum, or by level alone where those would be too many panels."""
    levels = list(evidence.colours)
    runs = sorted(
        evidence.raw, key=lambda run: (natural(run.stratum), levels.index(run.level) if run.level in levels else len(levels))
    )
    apart = n_keys * len({(run.level, run.stratum) for run in runs}) <= MAXIMUM_PANELS
    found: dict[tuple[str, str], list[RawRun]] = {}
    for run in runs:
        found.setdefault((run.level, run.stratum if apart else ""), []).append(run)
    return found


def _order(key: str) -> tuple[bool, str]:
    return "watts" not in key, key


def _over_time(axes: Axes, key: str, of: Sequence[str], runs: Sequence[RawRun], colour: str, limits: tuple[float, float]) -> None:
    last = max(float(run.sensors[key].seconds[-1]) for run in runs)
    scale = wording.scale("s", [last])
    if warm := [run.warm_seconds for run in runs if run.warm_seconds is not None]:
        axes.axvspan(0, max(0.0, float(np.median(warm))) / scale.factor, color=BAND, zorder=0)
    for run in runs:
        line = _thinned(run.sensors[key])
        axes.plot(line.seconds / scale.factor, line.values, color=colour, linewidth=0.9, alpha=0.75)
    frame(axes, "", "", "W" if "watts" in key else "°C")
    axes.set_title("\n".join([named(key), *of]))
    axes.set_ylim(*limits)
    axes.set_xlim(0, None)
    axes.set_xlabel(f"time since the run’s start, {scale.unit}")


def _thinned(series: Series) -> Series:
    """Medians of neighbours where there are more points than a line can show."""
    width = -(-len(series.values) // POINTS_A_LINE)
    count = len(series.values) // width
    if width == 1:
        return series
    shaped = (np.median(one[: count * width].reshape(count, width), axis=1) for one in (series.seconds, series.values))
    return Series(series.key, *shaped)


def named(key: str) -> str:
    """GPU 0 power, CPU temperature."""
    matched = re.fullmatch(r"system/(cpu|gpu)(?:_(\d+))?_(power|temperature)_.*", key)
    if matched is None:
        return key
    return " ".join(part for part in (matched[1].upper(), matched[2], matched[3]) if part)


ANALYSIS = Analysis(figures={80: latencies, 150: sensors})
