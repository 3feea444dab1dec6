"""Verdicts: their tables, the summaries over strata, the looks, and a figure of all ratios."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.report import tables, wording
from experiments.comparison.report.canvas import (
    BAD,
    BAND,
    GOOD,
    GRID,
    INK,
    LABEL_WIDTH,
    NEUTRAL,
    PAGE_INCHES,
    SOFT,
    Colours,
    Drawing,
    label_of,
    plain_ticks,
    shortened,
)
from experiments.comparison.report.sections import Header, Line, Section
from experiments.comparison.report.tables import EFFECT, decimal, number
from experiments.comparison.statistics import sequential
from experiments.comparison.verdicts.findings import Finding

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MAXIMUM_LINES = 40
HIGH_INCHES = 4.0
FOREST = (
    "A dot is the typical ratio over paired blocks, a line its 95 % interval, the band the "
    "margin (±{margin}). Right of 1 is better: where less is better, the ratio is inverted. Green: "
    "better than the baseline; red: worse; grey: no difference shown that matters. An outcome of "
    "which neither way is better is grey too and never inverted. A hollow dot has no verdict."
)
STRATA = (
    "Random-effects means over strata (Hartung and Knapp’s interval); runs of different strata are "
    "never pooled. The effect in one more stratum is expected within the prediction interval "
    "(Nagashima’s construction). I² is the share of the variation between strata that chance does "
    "not explain. "
)
LOOKS = (
    "The number of blocks was not fixed: the campaign went on until its primary outcomes were "
    "settled. Every look at the results may err, so all looks share the error rate of 5 %, by the "
    f"spending function {sequential.SPENDING}. Every interval, p and equivalence test of this "
    "report is that of its last look. The intervals are repeated confidence intervals: those of "
    "all looks together hold the truth in 95 % of campaigns (Jennison and Turnbull 2000). “95 % "
    "interval” means these. Limits of batch sizes and learning curves are not corrected for the "
    "looks."
)


def strata(evidence: Evidence) -> list[Section]:
    """Return the summary over strata of each outcome and pair of levels."""
    comparison = evidence.comparison
    rows: list[Line] = [
        (
            *(finding.outcome.label, f"{finding.row.b} against {finding.row.a}"),
            *(str(len(across.names)), *tables.effect(finding)),
            wording.p_value(finding.row.p_holm),
            wording.prediction(finding) or wording.NONE,
            decimal(across.i_squared_percent, "{:.0f} %"),
            wording.NONE if across.tau is None else wording.number(across.tau, 2),
            wording.p_value(across.q_p),
        )
        for finding in comparison.summaries
        if (across := finding.across)
    ]
    numbers = map(number, ("p (Holm)", "prediction", "I²", "tau", "p, alike (Q)"))
    header: Header = ("outcome", comparison.factor, number("strata"), *EFFECT, *numbers)
    caption = STRATA + wording.rests_on(comparison)
    notes = tables.reason_notes(comparison.summaries)
    return [Section("Across strata", caption, header, rows, notes=notes)] if rows else []


def looks(evidence: Evidence) -> list[Section]:
    """Return the looks of a campaign whose number of blocks was not fixed."""
    rows: list[Line] = [
        (
            *(look["stratum"], str(look["blocks"]), str(look["max_blocks"])),
            *(f"{100 * look[share]:.2f} %" for share in ("spent", "level", "confidence")),
        )
        for look in evidence.comparison.looks
    ]
    names = (
        *("after blocks", "of at most", "error rate spent", "level of the test"),
        "level of its interval",
    )
    header: Header = ("stratum", *map(number, names))
    return (
        [Section("Looks", LOOKS, header, rows, True, f"{len(rows)} looks, one error rate")]
        if rows
        else []
    )


def forest(evidence: Evidence) -> list[Drawing]:
    """Return the interval of every ratio; of more than 40 the headlines and the first others."""
    ratios = [
        finding
        for finding in evidence.comparison.findings
        if finding.row.kind == "ratio" and finding.row.estimate is not None
    ]
    headlines = {finding.row.metric for finding in wording.headlines(evidence.comparison)}
    ordered = sorted(ratios, key=lambda finding: finding.row.metric not in headlines)
    chosen = set(map(id, ordered[:MAXIMUM_LINES]))
    shown = [finding for finding in ratios if id(finding) in chosen]
    if not shown:
        return []
    margin = max(finding.row.margin for finding in shown)
    caption = FOREST.format(margin=wording.percent(margin))
    if len(shown) < len(ratios):
        caption += f" {len(shown)} of {len(ratios):,} lines, headlines first; the table has all."
    labels = {label_of(finding.outcome.label, finding.row.stratum) for finding in shown}
    lines = sum(1 + label.count("\n") for label in labels)
    height = 0.6 + 0.16 * (len(shown) + 0.5 * len(labels)) + 0.1 * lines
    # A high figure beside a low one would leave half of the page empty.
    width = PAGE_INCHES / 2 if height < HIGH_INCHES else PAGE_INCHES
    paint = partial(_paint, shown, margin, evidence.colours)
    return [Drawing("forest", "Ratios to the baseline", caption, height, paint, width)]


def _better_right(finding: Finding) -> tuple[float | None, ...]:
    row = finding.row
    if finding.outcome.better != "lower":
        return row.estimate, row.ci_low, row.ci_high
    bounds = (row.estimate, row.ci_high, row.ci_low)
    return tuple(1 / bound if bound else None for bound in bounds)


def _paint(shown: Sequence[Finding], margin: float, colours: Colours, canvas: Canvas) -> None:
    axes = canvas.add_subplot()
    axes.set_xscale("log")
    axes.axvspan(1 / (1 + margin), 1 + margin, color=BAND, zorder=0)
    axes.axvline(1, color=SOFT, linewidth=0.8, zorder=1)
    _intervals(axes, shown, colours)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.9), max(high, 1.1))
    plain_ticks(axes.xaxis, suffix="×")
    sides = [{finding.row.b for finding in shown}, {finding.row.a for finding in shown}]
    b, a = (
        shortened(levels.pop(), 40) if len(levels) == 1 else several
        for levels, several in zip(sides, ("each level", "its baseline"), strict=True)
    )
    directions = {finding.outcome.better for finding in shown}
    what = f"{a} / {b}" if directions == {"lower"} else f"{b} / {a}"
    what += ", inverted where less is better" if {"lower"} < directions else ""
    better = "" if "neither" in directions else "      better →"
    axes.set_xlabel(f"{what} (×){better}")


def _intervals(axes: Axes, shown: Sequence[Finding], colours: Colours) -> None:
    """Draw a line for each finding, from the top; findings of one outcome are adjacent."""
    several = len({(finding.row.a, finding.row.b) for finding in shown}) > 1
    labels: dict[float, str] = {}
    places = list[float]()
    tints = [{True: GOOD, False: BAD, None: NEUTRAL}[finding.good] for finding in shown]
    place, before = 0.0, ("", "")
    for finding, tint in zip(shown, tints, strict=True):
        row = finding.row
        if (row.metric, row.stratum) != before:
            place += 0.5 if labels and several else 0.0
            labels[place] = label_of(finding.outcome.label, row.stratum)
        before = (row.metric, row.stratum)
        level = f"   {shortened(row.b, LABEL_WIDTH)}" if several else ""
        note, point = f"{wording.effect(finding)}{level}", (1.01, place)
        of_axes = ("axes fraction", "data")
        axes.annotate(note, point, xycoords=of_axes, va="center", fontsize=7.5, color=tint)
        places.append(place)
        place += 1
    values, lows, highs = np.array([_better_right(finding) for finding in shown], float).T
    axes.hlines(places, lows, highs, colors=tints, linewidth=2.2, zorder=2)
    marks = [
        colours[finding.row.b] if several else tint
        for finding, tint in zip(shown, tints, strict=True)
    ]
    faces = [
        mark if finding.judged else "white" for finding, mark in zip(shown, marks, strict=True)
    ]
    axes.scatter(values, places, s=42, facecolors=faces, edgecolors=marks, zorder=3)
    axes.set_yticks(list(labels), list(labels.values()), color=INK, fontsize=8)
    axes.set_ylim(place - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID, linewidth=0.6, zorder=0)
    axes.spines["left"].set_visible(False)
