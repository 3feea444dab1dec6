"""Shares of the machine's peak that each level reached, beside its roofline: shown, not judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments import metrics
from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.canvas import (
    INK,
    LABEL_WIDTH,
    Colours,
    Drawing,
    frame,
    paneled,
    plain_ticks,
    shortened,
)
from experiments.comparison.report.sections import Header, Line, Section
from experiments.comparison.report.tables import decimal, number
from experiments.comparison.runs.pairing import natural
from experiments.comparison.statistics import estimates
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.findings import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GIGA = 1e9
SPREAD = 0.08  # between levels of one intensity, of its logarithm
PHASES = dict(
    zip(
        ("training", "inference"),
        zip(metrics.SHARES_OF_PEAK, metrics.INTENSITIES, strict=True),
        strict=True,
    )
)
CAPTION = (
    "MFU is the share of the machine’s peak that the products and convolutions of the model take, "
    "without padding: examples a second × FLOPs an example ÷ peak. All levels of a model share its "
    "FLOPs, so their MFUs are to each other as their throughputs. The peak is that of the fastest "
    "products of large matrices by any of the compared libraries, with the threads and the "
    "precision of the cells. FLOPs a byte are those of a step over the bytes of its weights, "
    "gradients, moments, inputs and outputs, each moved once. At few of them the speed of the "
    "memory is the limit, the roof: min(peak, FLOPs a byte × bytes a second)."
)
FIGURE = (
    "A dot is a level, with its 95 % interval over blocks; the line is the roof of the machine. "
    "What lies far below it does something else than to compute or to move what it must."
)


@dataclass(frozen=True)
class Point:
    """Typical run of a level in a stratum: its share of the peak, and its place on the roofline."""

    stratum: str
    level: str
    phase: str
    share: Estimate
    intensity: float
    peak: float
    bandwidth: float | None
    vendor_peak: float | None
    tokens: float | None
    padding: float | None

    @property
    def roof(self) -> float | None:
        """Return FLOP/s that the machine allows at this intensity."""
        return min(self.peak, self.intensity * self.bandwidth) if self.bandwidth else None


def points(comparison: Comparison) -> list[Point]:
    """Return a point for each level, stratum and phase whose runs have a share of the peak."""
    results = []
    for phase, (share, intensity) in PHASES.items():
        values = comparison.unjudged.get(share, ())
        for stratum in sorted({value.stratum for value in values}, key=natural):
            for level in comparison.levels:
                key = (stratum, level)
                logs = np.log(_values(comparison, share, key))
                place, peak = (_mean(comparison, name, key) for name in (intensity, metrics.PEAK))
                if len(logs) and place and peak:
                    typical = estimates.exponential(estimates.trimmed_mean(logs))
                    names = (
                        metrics.BANDWIDTH,
                        metrics.VENDOR_PEAK,
                        metrics.TOKENS,
                        metrics.PADDING,
                    )
                    rest = (_mean(comparison, name, key) for name in names)
                    results.append(Point(*key, phase, typical, place, peak, *rest))
    return results


def _values(comparison: Comparison, metric: str, key: tuple[str, str]) -> list[float]:
    values = comparison.unjudged.get(metric, ())
    return [value.value for value in values if (value.stratum, value.level) == key]


def _mean(comparison: Comparison, metric: str, key: tuple[str, str]) -> float | None:
    values = _values(comparison, metric, key)
    return float(np.mean(values)) if values else None


def sentences(evidence: Evidence) -> list[str]:
    """Return which share of the peak each level reached in training, or else in inference."""
    comparison = evidence.comparison
    for phase in PHASES:
        of_phase = [point for point in points(comparison) if point.phase == phase]
        parts = []
        for level in comparison.levels:
            if shares := [100 * point.share.value for point in of_phase if point.level == level]:
                texts = [wording.number(share, 2) for share in (min(shares), max(shares))]
                name = wording.level_name(level, comparison.factor)
                parts.append(f"{name} {' to '.join(dict.fromkeys(texts))} %")
        if parts:
            return [f"Share of the machine’s peak in {phase}: {wording.joined(parts)}."]
    return []


def table(evidence: Evidence) -> list[Section]:
    """Return the share of the peak of each level, and the roof above it."""
    numbers = (
        *("GFLOP/s", "MFU", "95 % interval", "of the vendor’s peak", "FLOPs a byte", "roof"),
        *("tokens/s", "padding"),
    )
    header: Header = ("stratum", evidence.comparison.factor, "phase", *map(number, numbers))
    rows: list[Line] = [
        (
            *(point.stratum, point.level, point.phase),
            wording.number(point.share.value * point.peak / GIGA),
            _percent(point.share.value),
            wording.NONE
            if np.isinf(point.share.high)
            else f"{_percent(point.share.low)} to {_percent(point.share.high)}",
            _percent(point.share.value * point.peak / point.vendor_peak)
            if point.vendor_peak
            else wording.NONE,
            wording.number(point.intensity),
            wording.NONE if point.roof is None else _percent(point.roof / point.peak),
            wording.NONE
            if point.tokens is None or point.phase != "training"
            else wording.number(point.tokens),
            decimal(point.padding, "{:.1f} %"),
        )
        for point in points(evidence.comparison)
    ]
    return [Section("How far from the machine’s limit", CAPTION, header, rows)] if rows else []


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def figure(evidence: Evidence) -> list[Drawing]:
    """Return the roofline, a panel for each phase."""
    reached = points(evidence.comparison)
    panels = [
        partial(_panel, phase, inside, evidence.colours)
        for phase in PHASES
        if (inside := [point for point in reached if point.phase == phase])
    ]
    return paneled("roofline", "Roofline", FIGURE, evidence.colours, panels, panel_inches=3.2)


def _panel(phase: str, reached: Sequence[Point], colours: Colours, axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    intensities = [point.intensity for point in reached]
    ends = np.geomspace(min(intensities) / 3, max(intensities) * 3, 200)
    for peak, bandwidth in {(point.peak, point.bandwidth) for point in reached}:
        roof = np.minimum(peak, ends * bandwidth) if bandwidth else np.full_like(ends, peak)
        axes.plot(ends, roof / GIGA, color=INK, linewidth=1.0, zorder=1)
    places = {level: SPREAD * (at - (len(colours) - 1) / 2) for at, level in enumerate(colours)}
    for stratum in dict.fromkeys(point.stratum for point in reached):
        inside = [point for point in reached if point.stratum == stratum]
        lowest = float("inf")
        for point in inside:
            x, colour = point.intensity * np.exp(places[point.level]), colours[point.level]
            share = (point.share.value, point.share.low, point.share.high)
            y, *bounds = np.array(share) * point.peak / GIGA
            if np.isfinite(bounds).all():
                axes.vlines(x, *bounds, color=colour, linewidth=2.2, zorder=3)
            axes.scatter(x, y, s=30, color=colour, linewidths=0, zorder=4)
            lowest = min(lowest, y, bounds[0] or y)
        values = (part.rpartition("=")[2] for part in stratum.split(", "))
        note, below = shortened(", ".join(values), LABEL_WIDTH), (inside[0].intensity, lowest)
        axes.annotate(
            note, below, (0, -6), textcoords="offset points", ha="center", va="top", fontsize=7
        )
    frame(axes, phase, "", "GFLOP/s")
    axes.set_xlabel("FLOPs a byte")
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis)
