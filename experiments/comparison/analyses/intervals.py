"""The verdicts themselves: their tables, and every estimate with its interval, ratios and differences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import tables, wording
from experiments.comparison.report.canvas import (
    BAD,
    BAND,
    GOOD,
    GRID,
    INK,
    LABEL_WIDTH,
    NEUTRAL,
    SOFT,
    Colours,
    Drawing,
    label,
    ratio_ticks,
    shortened,
)
from experiments.comparison.verdicts.findings import Finding

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Bounds = tuple[float | None, float | None, float | None]
MAXIMUM_LINES = 40
BETTER = "      better →"


def forest(evidence: Evidence) -> Drawing | None:
    shown, left_out = _most_telling(evidence, "ratio")
    if not shown:
        return None
    margin = max(finding.row.margin for finding in shown)
    caption = (
        "A dot is the geometric mean ratio over paired blocks, a line its 95 % interval, the band the margin "
        f"(±{wording.percent(margin)}). Right of 1 is better in every line: where less is better, the ratio is turned. Green: "
        "better than the baseline; red: worse; grey: no difference shown that matters, or neither way is better: such a line has "
        f"the ratio as it is. A hollow dot has no verdict.{left_out}"
    )
    paint = partial(_paint_ratios, shown, margin, evidence.colours)
    return Drawing("forest", "Ratios to the baseline", caption, _height(shown), paint)


def _paint_ratios(
    shown: Sequence[Finding], margin: float, colours: Colours, canvas: Canvas
) -> None:
    axes = canvas.add_subplot()
    axes.set_xscale("log")
    axes.axvspan(1 / (1 + margin), 1 + margin, color=BAND, zorder=0)
    axes.axvline(1, color=SOFT, linewidth=0.8, zorder=1)
    _intervals(axes, shown, [_better_right(finding) for finding in shown], colours)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.9), max(high, 1.1))
    ratio_ticks(axes.xaxis)
    axes.set_xlabel(_against(shown, "ratio of {b} to {a} (×)") + BETTER)


def differences(evidence: Evidence) -> Drawing | None:
    shown, left_out = _most_telling(evidence, "difference")
    if not shown:
        return None
    caption = (
        "Outcomes with units of their own, each divided by its margin: inside the band a difference is too small to matter. "
        "Right of 0 is better in every line: where less is better, the sign is turned."
    )
    paint = partial(_paint_differences, shown, evidence.colours)
    return Drawing(
        "differences", "Differences from the baseline", caption + left_out, _height(shown), paint
    )


def _paint_differences(shown: Sequence[Finding], colours: Colours, canvas: Canvas) -> None:
    axes = canvas.add_subplot()
    axes.axvspan(-1, 1, color=BAND, zorder=0)
    axes.axvline(0, color=SOFT, linewidth=0.8, zorder=1)
    _intervals(axes, shown, [_in_margins(finding) for finding in shown], colours)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -1.5), max(high, 1.5))
    axes.set_xlabel(_against(shown, "{b} minus {a} (margins)") + BETTER)


def _most_telling(evidence: Evidence, kind: str) -> tuple[list[Finding], str]:
    """Findings with an estimate: all, or, where nobody could read them in one figure, whole outcomes, the headlines first."""
    found = [
        f for f in evidence.comparison.findings if f.row.kind == kind and f.row.estimate is not None
    ]
    if len(found) <= MAXIMUM_LINES:
        return found, ""
    groups: dict[str, list[Finding]] = {}
    for finding in found:
        groups.setdefault(finding.row.metric, []).append(finding)
    headlines = [finding.row.metric for finding in wording.headlines(evidence.comparison)]
    kept: set[str] = set()
    for metric in dict.fromkeys([*(metric for metric in headlines if metric in groups), *groups]):
        if not kept or sum(len(groups[one]) for one in kept) + len(groups[metric]) <= MAXIMUM_LINES:
            kept.add(metric)
    shown = [finding for finding in found if finding.row.metric in kept][: 2 * MAXIMUM_LINES]
    return (
        shown,
        f" {len(shown)} of {len(found):,} lines, headlines first; the table above has all.",
    )


def _in_margins(finding: Finding) -> Bounds:
    row = finding.row
    value, low, high = (
        None if one is None else one / row.margin for one in (row.estimate, row.ci_low, row.ci_high)
    )
    if finding.outcome.better != "lower":
        return value, low, high
    return tuple(None if one is None else -one for one in (value, high, low))  # type: ignore[return-value]


def _better_right(finding: Finding) -> Bounds:
    """The ratio and its interval, turned where less is better."""
    row = finding.row
    if finding.outcome.better != "lower":
        return row.estimate, row.ci_low, row.ci_high
    return tuple(1 / one if one else None for one in (row.estimate, row.ci_high, row.ci_low))  # type: ignore[return-value]


def _intervals(
    axes: Axes, shown: Sequence[Finding], bounds: Sequence[Bounds], colours: Colours
) -> None:
    """One line a finding, from the top; findings of one outcome stand together."""
    several = len({(f.row.a, f.row.b) for f in shown}) > 1
    labels: dict[float, str] = {}
    places, tints = (
        list[float](),
        [{True: GOOD, False: BAD, None: NEUTRAL}[finding.good] for finding in shown],
    )
    place, before = 0.0, ("", "")
    for finding, tint in zip(shown, tints, strict=True):
        row = finding.row
        if (row.metric, row.stratum) != before:
            place += 0.5 if labels and several else 0.0
            labels[place] = label(finding.outcome, row.stratum)
        before = (row.metric, row.stratum)
        note = (
            f"{wording.effect(finding)}   {shortened(row.b, LABEL_WIDTH)}"
            if several
            else wording.effect(finding)
        )
        axes.annotate(
            note,
            (1.01, place),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7.5,
            color=tint,
        )
        places.append(place)
        place += 1
    values, lows, highs = np.array(bounds, float).T
    errors = [values - lows, highs - values]
    ecolor: Any = tints  # one a line, which the stubs do not know
    axes.errorbar(values, places, xerr=errors, fmt="none", ecolor=ecolor, elinewidth=2.2, zorder=2)
    marks = [colours[finding.row.b] for finding in shown] if several else tints
    faces = [
        mark if finding.judged else "white" for finding, mark in zip(shown, marks, strict=True)
    ]
    axes.scatter(
        values, places, s=6.5**2, facecolors=faces, edgecolors=marks, linewidths=1.4, zorder=3
    )
    axes.set_yticks(list(labels), list(labels.values()), color=INK, fontsize=8)
    axes.set_ylim(place - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID, linewidth=0.6, zorder=0)
    axes.spines["left"].set_visible(False)


def _height(shown: Sequence[Finding]) -> float:
    outcomes = {
        (f.row.metric, f.row.stratum): label(f.outcome, f.row.stratum).count("\n") for f in shown
    }
    return 0.9 + 0.28 * (len(shown) + 0.5 * len(outcomes)) + 0.1 * sum(outcomes.values())


def _against(shown: Sequence[Finding], pattern: str) -> str:
    def named(levels: set[str], otherwise: str) -> str:
        return shortened(levels.pop(), 40) if len(levels) == 1 else otherwise

    return pattern.format(
        a=named({f.row.a for f in shown}, "its baseline"),
        b=named({f.row.b for f in shown}, "each level"),
    )


ANALYSIS = Analysis(
    tables={
        5: lambda evidence: [tables.verdicts(evidence.comparison)],
        10: lambda evidence: [tables.second_opinions(evidence.comparison)],
    },
    figures={10: forest, 20: differences},
)
