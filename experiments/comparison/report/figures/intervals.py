"""Estimates with their intervals: ratios, differences, and average ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from experiments.comparison.report import wording
from experiments.comparison.report.figures import tips
from experiments.comparison.report.figures.canvas import (
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
    Scene,
    label,
    log_ticks,
    plain_ticks,
    shortened,
)
from experiments.comparison.report.figures.tips import Tip
from experiments.comparison.verdicts.findings import Finding
from experiments.comparison.verdicts.ranking import Ranking, rankings

Bounds = tuple[float | None, float | None, float | None]
MAXIMUM_LINES = 40
# The share of an axis that a tick's label needs.
LABEL_ROOM = 0.09
BETTER = "      better →"


def forest(scene: Scene) -> Drawing | None:
    shown, left_out = _most_telling(scene, "ratio")
    if not shown:
        return None
    margin = max(finding.row.margin for finding in shown)
    caption = (
        "A dot is the geometric mean ratio over paired blocks, a line its 95 % interval, the band the margin "
        f"(±{wording.percent(margin)}). Right of 1 is better in every line: where less is better, the ratio is turned. Green: "
        "better than the baseline; red: worse; grey: no difference shown that matters, or neither way is better: such a line has "
        f"the ratio as it is. A hollow dot has no verdict.{left_out}"
    )
    paint = partial(_paint_ratios, shown, margin, scene.colours)
    return Drawing("forest", "Ratios to the baseline", caption, _height(shown), paint)


def _paint_ratios(shown: Sequence[Finding], margin: float, colours: Colours, canvas: Canvas) -> None:
    axes = canvas.add_subplot()
    axes.set_xscale("log")
    axes.axvspan(1 / (1 + margin), 1 + margin, color=BAND, zorder=0)
    axes.axvline(1, color=SOFT, linewidth=0.8, zorder=1)
    _intervals(axes, shown, [_better_right(finding) for finding in shown], colours)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.9), max(high, 1.1))
    _ratio_ticks(axes)
    axes.set_xlabel(_against(shown, "ratio of {b} to {a} (×)") + BETTER)


def differences(scene: Scene) -> Drawing | None:
    shown, left_out = _most_telling(scene, "difference")
    if not shown:
        return None
    caption = (
        "Outcomes with units of their own, each divided by its margin: inside the band a difference is too small to matter. "
        "Right of 0 is better in every line: where less is better, the sign is turned."
    )
    paint = partial(_paint_differences, shown, scene.colours)
    return Drawing("differences", "Differences from the baseline", caption + left_out, _height(shown), paint)


def _paint_differences(shown: Sequence[Finding], colours: Colours, canvas: Canvas) -> None:
    axes = canvas.add_subplot()
    axes.axvspan(-1, 1, color=BAND, zorder=0)
    axes.axvline(0, color=SOFT, linewidth=0.8, zorder=1)
    _intervals(axes, shown, [_in_margins(finding) for finding in shown], colours)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -1.5), max(high, 1.5))
    axes.set_xlabel(_against(shown, "{b} minus {a} (margins)") + BETTER)


def _most_telling(scene: Scene, kind: str) -> tuple[list[Finding], str]:
    """Findings with an estimate: all, or, where nobody could read them in one figure, whole outcomes, the headlines first."""
    found = [f for f in scene.comparison.findings if f.row.kind == kind and f.row.estimate is not None]
    if len(found) <= MAXIMUM_LINES:
        return found, ""
    groups: dict[str, list[Finding]] = {}
    for finding in found:
        groups.setdefault(finding.row.metric, []).append(finding)
    headlines = [finding.row.metric for finding in wording.headlines(scene.comparison)]
    kept: set[str] = set()
    for metric in dict.fromkeys([*(metric for metric in headlines if metric in groups), *groups]):
        if not kept or sum(len(groups[one]) for one in kept) + len(groups[metric]) <= MAXIMUM_LINES:
            kept.add(metric)
    shown = [finding for finding in found if finding.row.metric in kept][: 2 * MAXIMUM_LINES]
    return shown, f" {len(shown)} of {len(found):,} lines, headlines first; the table above has all."


def _in_margins(finding: Finding) -> Bounds:
    row = finding.row
    value, low, high = (None if one is None else one / row.margin for one in (row.estimate, row.ci_low, row.ci_high))
    if finding.outcome.better != "lower":
        return value, low, high
    return tuple(None if one is None else -one for one in (value, high, low))  # type: ignore[return-value]


def _better_right(finding: Finding) -> Bounds:
    """The ratio and its interval, turned where less is better."""
    row = finding.row
    if finding.outcome.better != "lower":
        return row.estimate, row.ci_low, row.ci_high
    return tuple(1 / one if one else None for one in (row.estimate, row.ci_high, row.ci_low))  # type: ignore[return-value]


def _intervals(axes: Axes, shown: Sequence[Finding], bounds: Sequence[Bounds], colours: Colours) -> None:
    """One line a finding, from the top; findings of one outcome stand together."""
    several = len({(f.row.a, f.row.b) for f in shown}) > 1
    labels: dict[float, str] = {}
    places, tints = list[float](), [{True: GOOD, False: BAD, None: NEUTRAL}[finding.good] for finding in shown]
    place, before = 0.0, ("", "")
    for finding, tint in zip(shown, tints, strict=True):
        row = finding.row
        if (row.metric, row.stratum) != before:
            place += 0.5 if labels and several else 0.0
            labels[place] = label(finding.outcome, row.stratum)
        before = (row.metric, row.stratum)
        note = f"{wording.effect(finding)}   {shortened(row.b, LABEL_WIDTH)}" if several else wording.effect(finding)
        axes.annotate(note, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=7.5, color=tint)
        places.append(place)
        place += 1
    _lines(axes, places, bounds, tints)
    marks = [colours[finding.row.b] for finding in shown] if several else tints
    faces = [mark if finding.judged else "white" for finding, mark in zip(shown, marks, strict=True)]
    values = [value or 0.0 for value, _, _ in bounds]
    dots = axes.scatter(values, places, s=6.5**2, facecolors=faces, edgecolors=marks, linewidths=1.4, zorder=3)
    tips.put(dots, list(map(_told_of, shown)))
    axes.set_yticks(list(labels), list(labels.values()), color=INK, fontsize=8)
    axes.set_ylim(place - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID, linewidth=0.6, zorder=0)
    axes.spines["left"].set_visible(False)


def _told_of(finding: Finding) -> Tip:
    interval = wording.effect_interval(finding)
    of = f"{wording.named(finding)}, {finding.row.b} against {finding.row.a}"
    return Tip(f"{of}: {wording.effect(finding)}{f' (95 % interval {interval})' if interval else ''}, {finding.row.verdict}")


def _lines(axes: Axes, places: Sequence[float], bounds: Sequence[Bounds], tints: Sequence[str]) -> None:
    """All intervals with two ends as one artist: Matplotlib lays out and draws few faster than many."""
    found = [
        (place, low, high, tint)
        for place, (_, low, high), tint in zip(places, bounds, tints, strict=True)
        if low is not None and high is not None
    ]
    if found:
        at, lows, highs, colours = zip(*found, strict=True)
        axes.hlines(at, lows, highs, colors=colours, linewidth=2.2, capstyle="round", zorder=2)


def _height(shown: Sequence[Finding]) -> float:
    outcomes = {(f.row.metric, f.row.stratum): label(f.outcome, f.row.stratum).count("\n") for f in shown}
    return 0.9 + 0.28 * (len(shown) + 0.5 * len(outcomes)) + 0.1 * sum(outcomes.values())


def _against(shown: Sequence[Finding], pattern: str) -> str:
    def named(levels: set[str], otherwise: str) -> str:
        return shortened(levels.pop(), 40) if len(levels) == 1 else otherwise

    return pattern.format(a=named({f.row.a for f in shown}, "its baseline"), b=named({f.row.b for f in shown}, "each level"))


def _ratio_ticks(axes: Axes) -> None:
    low, high = axes.get_xlim()
    wide = (0.02, 0.05, 0.1, 0.2, 0.33, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50)
    middle = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3)
    near = (0.6, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.4)
    if high / low > 50:
        plain_ticks(axes.xaxis, log_ticks(low, high, 6), "×")
        return
    chosen = wide if high / low > 4 else middle if high / low > 1.8 else near
    plain_ticks(axes.xaxis, _apart([tick for tick in chosen if low <= tick <= high], low, high), "×")


def _apart(ticks: Sequence[float], low: float, high: float) -> list[float]:
    """1, and to both sides of it those that have room for their labels on a logarithmic axis."""
    room = LABEL_ROOM * math.log(high / low)
    kept = [1.0]
    for tick in sorted(ticks, key=lambda one: abs(math.log(one))):
        if all(abs(math.log(tick / other)) >= room for other in kept):
            kept.append(tick)
    return sorted(kept)


# ---- average ranks


def ranks(scene: Scene) -> Drawing | None:
    found = rankings(scene.comparison, [finding.row.metric for finding in wording.headlines(scene.comparison)])
    if not found:
        return None
    rows = -(-len(found[0].levels) // 2)
    inches = 0.8 + 0.2 * rows + 0.09 * max(len(one.groups) for one in found)
    caption = (
        f"Mean rank over {found[0].n_workloads} workloads; 1, on the left, is best. Thick bars join levels that are not shown to "
        "differ: their ranks lie within the critical difference (CD, Nemenyi, 5 %), or Friedman’s test finds no difference at "
        f"all. {' '.join(map(_told, found))}"
    )
    paint = partial(_paint_ranks, found, scene.colours)
    return Drawing("ranks", "Critical differences of mean ranks", caption, 0.2 + inches * len(found), paint)


def _paint_ranks(found: Sequence[Ranking], colours: Colours, canvas: Canvas) -> None:
    for axes, one in zip(canvas.subplots(len(found), 1, squeeze=False).flat, found, strict=True):
        _ranks(axes, one, colours)


def _told(one: Ranking) -> str:
    """Nemenyi's bars beside the pairwise tests: with few workloads neither can show much, and that is said."""
    pairs = len(one.levels) * (len(one.levels) - 1) // 2
    return (
        f"{one.outcome.label[:1].upper()}{one.outcome.label[1:]}: Friedman p {wording.p_value(one.friedman.p)}; "
        f"Wilcoxon–Holm separates {one.pairs_different} of {pairs} pairs."
    )


def _ranks(axes: Axes, one: Ranking, colours: Colours) -> None:
    """Levels left of the middle are named on the left, the others on the right; bars of groups lie under the axis."""
    count, step, bar = len(one.levels), 1.0, 0.45
    below = 0.35 + bar * len(one.groups)
    left = -(-count // 2)
    axes.set_xlim(1 - 0.55 * (count - 1), count + 0.55 * (count - 1))
    axes.plot([1, count], [0, 0], color=SOFT, linewidth=1)
    for tick in range(1, count + 1):
        axes.plot([tick, tick], [0, -0.18], color=SOFT, linewidth=0.8)
        axes.text(tick, -0.3, str(tick), ha="center", va="bottom", fontsize=7.5, color=SOFT)
    for at, (first, last) in enumerate(one.groups):
        height = 0.35 + bar * at
        axes.plot([one.ranks[first], one.ranks[last]], [height, height], color=INK, linewidth=3, solid_capstyle="round")
    for at, (level, rank) in enumerate(zip(one.levels, one.ranks, strict=True)):
        is_left = at < left
        height = below + step * (at if is_left else count - 1 - at) + 0.4
        edge = 1 - 0.04 * count if is_left else count + 0.04 * count
        axes.plot([rank, rank, edge], [0, height, height], color=colours[level], linewidth=1.1, zorder=1)
        axes.scatter([rank], [0], s=16, color=colours[level], zorder=3)
        name = f"{shortened(level, 30)}  {rank:.2f}" if is_left else f"{rank:.2f}  {shortened(level, 30)}"
        axes.annotate(
            name,
            (edge, height),
            (-4 if is_left else 4, 0),
            textcoords="offset points",
            va="center",
            ha="right" if is_left else "left",
            fontsize=8,
        )
    _ruler(axes, one, count)
    axes.set_ylim(below + step * left + 0.2, -2.3)
    axes.set_title(one.outcome.label)
    axes.set_axis_off()


def _ruler(axes: Axes, one: Ranking, count: int) -> None:
    """As long as the critical difference, or as the axis where that is longer."""
    end, text = (
        min(1 + one.critical, count),
        f"CD {one.critical:.2f}" + (" (longer than all ranks)" if one.critical > count - 1 else ""),
    )
    axes.plot([1, end], [-1.3, -1.3], color=INK, linewidth=1.4)
    for edge in (1, end):
        axes.plot([edge, edge], [-1.45, -1.15], color=INK, linewidth=1.4)
    axes.text((1 + end) / 2, -1.5, text, ha="center", va="bottom", fontsize=7.5)
