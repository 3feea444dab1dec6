"""What every look of a campaign saw that goes on until it is settled: an outcome's intervals, look by look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import canvas, wording
from experiments.comparison.report.canvas import BAND, GRID, SOFT, Colours, Drawing, plain_ticks
from experiments.comparison.report.sections import Line, Section
from experiments.comparison.report.tables import number
from experiments.comparison.statistics import estimates, sequential
from experiments.comparison.statistics.estimates import Estimate, Floats
from experiments.comparison.verdicts.decision import ALPHA
from experiments.comparison.verdicts.findings import Finding

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_TICKS = 6


@dataclass(frozen=True)
class Seen:
    """One look's estimate, on the scale of the row: a ratio b / a or a difference b - a.

    interval: as the row of this look had it. inner: the narrower one of the two one-sided tests, which shows equivalence where
    it lies inside the margin.
    """

    blocks: int
    interval: Estimate
    inner: Estimate


def of_finding(finding: Finding) -> tuple[Seen, ...]:
    """Every look that has at least three pairs, the last of which is the row.

    None where the number of blocks was fixed.
    """
    if not finding.looks.blocks or finding.row.p is None:
        return ()
    shifts, blocks = finding.shifts, np.array([int(float(pair.block)) for pair in finding.pairs])
    found = []
    for looks, mean in zip(finding.looks.one_by_one(), finding.means, strict=True):
        if mean is not None:
            centre = estimates.centre(shifts[blocks <= looks.blocks[-1]])
            both = (mean.interval(1 - looks.level(rate)) for rate in (ALPHA, 2 * ALPHA))
            intervals = (_estimate(centre, *bounds, finding.row.kind) for bounds in both)
            found.append(Seen(looks.blocks[-1], *intervals))
    return tuple(found)


def _estimate(centre: float, low: Floats, high: Floats, kind: str) -> Estimate:
    found = Estimate(centre, float(low), float(high))
    return estimates.exponential(found) if kind == "ratio" else found


def table(evidence: Evidence) -> list[Section]:
    """When it was looked, and how strictly, where the campaign went on until it was settled."""
    names = (
        "after blocks",
        "of at most",
        "error rate spent",
        "level of the test",
        "level of its interval",
    )
    rows: list[Line] = [
        (
            *(one.stratum, str(one.blocks), str(one.max_blocks)),
            *(
                f"{100 * one.spent:.2f} %",
                f"{100 * one.level:.2f} %",
                f"{100 * one.confidence:.2f} %",
            ),
        )
        for one in evidence.comparison.looks
    ]
    caption = (
        "The number of blocks was not fixed: the campaign went on until its primary outcomes were settled. Every look may err, "
        f"so the error rate of 5 % is spent over all of them, {sequential.SPENDING}. Every interval and p of this report, and "
        "every equivalence test, is that of its last look: repeated confidence intervals, which together hold the truth in 95 % "
        "(Jennison and Turnbull 2000). “95 % interval” means these. Limits of batch sizes, learning curves and rankings are "
        "not corrected for the looks."
    )
    return [Section("Looks", caption, ("stratum", *map(number, names)), rows)] if rows else []


def figure(evidence: Evidence) -> Drawing | None:
    """A panel for every headline and stratum of a campaign whose number of blocks was not fixed."""
    panels: dict[tuple[str, str], list[tuple[Finding, Sequence[Seen]]]] = {}
    for finding in wording.headlines(evidence.comparison):
        if seen := of_finding(finding):
            panels.setdefault((finding.row.metric, finding.row.stratum), []).append((finding, seen))
    painted = [partial(_fan, levels=levels, colours=evidence.colours) for levels in panels.values()]
    shown = {finding.row.b for levels in panels.values() for finding, _ in levels}
    colours = {level: colour for level, colour in evidence.colours.items() if level in shown}
    return canvas.paneled(
        "looks", "Intervals, look by look", _caption(evidence), colours, painted, panel_inches=2.3
    )


def _caption(evidence: Evidence) -> str:
    looks = {one.blocks: one for one in evidence.comparison.looks}
    if not looks:
        return ""
    ends = [min(looks), max(looks)] if len(looks) > 1 else list(looks)
    shown = " to ".join(f"{blocks} ({100 * looks[blocks].confidence:.1f} %)" for blocks in ends)
    most = max(one.max_blocks for one in looks.values())
    return (
        f"{len(looks)} looks, after {shown} blocks of at most {most}; in brackets the confidence of "
        "the look’s interval, by error spending. Together they hold the truth in 95 % (repeated "
        "confidence intervals). The pale area is that interval, the dark one the narrower of the "
        "equivalence test; the band is the margin. It is settled where the pale area leaves the "
        "band, or the dark one lies inside it."
    )


def _fan(axes: Axes, levels: Sequence[tuple[Finding, Sequence[Seen]]], colours: Colours) -> None:
    row, outcome = levels[0][0].row, levels[0][0].outcome
    ratio = row.kind == "ratio"
    if ratio:
        axes.set_yscale("log")
    axes.axhspan(
        1 / (1 + row.margin) if ratio else -row.margin,
        1 + row.margin if ratio else row.margin,
        color=BAND,
        zorder=0,
    )
    axes.axhline(1 if ratio else 0, color=SOFT, linewidth=0.8, zorder=1)
    for finding, seen in levels:
        colour, blocks = colours[finding.row.b], [one.blocks for one in seen]
        for part, alpha in (("interval", 0.18), ("inner", 0.3)):
            bounds = [getattr(one, part) for one in seen]
            lows, highs = [one.low for one in bounds], [one.high for one in bounds]
            axes.fill_between(blocks, lows, highs, color=colour, alpha=alpha, linewidth=0, zorder=2)
            axes.vlines(blocks, lows, highs, color=colour, linewidth=0.8, alpha=0.6, zorder=2)
        axes.plot(
            blocks,
            [one.interval.value for one in seen],
            color=colour,
            linewidth=1.5,
            marker="o",
            markersize=3,
            zorder=3,
        )
    canvas.frame(
        axes,
        outcome.label,
        row.stratum,
        f"ratio to {row.a}" if ratio else f"minus {row.a}, {canvas.unit_of(outcome)}",
    )
    if ratio:
        canvas.ratio_ticks(axes.yaxis)
    looks = sorted({one.blocks for _, seen in levels for one in seen})
    plain_ticks(axes.xaxis, sorted({*looks[:: -(-len(looks) // MAX_TICKS)], looks[-1]}))
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_xlabel("blocks")


ANALYSIS = Analysis(tables={70: table}, figures={40: figure})
