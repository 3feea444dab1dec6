"""More than two levels over several workloads: average ranks, Friedman's test, and what differs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.canvas import INK, SOFT, Colours, Drawing, shortened
from experiments.comparison.statistics import significance
from experiments.comparison.statistics.significance import Tested
from experiments.comparison.verdicts import busy
from experiments.comparison.verdicts.decision import ALPHA
from experiments.comparison.verdicts.findings import Comparison
from experiments.metrics import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MINIMUM_WORKLOADS = 3
MAXIMUM_RANKINGS = 3


@dataclass(frozen=True)
class Ranking:
    """Levels by their average rank over workloads (strata), the best first. Source: Demšar 2006.

    critical: Nemenyi's critical difference. groups: (first, last) of levels that are not shown to differ.
    pairs_different: pairs that Wilcoxon's signed-rank test tells apart after Holm's correction.
    """

    outcome: Outcome
    levels: tuple[str, ...]
    ranks: tuple[float, ...]
    n_workloads: int
    critical: float
    friedman: Tested
    groups: tuple[tuple[int, int], ...]
    pairs_different: int


def rankings(comparison: Comparison, metrics: Iterable[str]) -> tuple[Ranking, ...]:
    """One a metric, if there are more than two levels and at least three strata that have them all."""
    known = {finding.row.metric: finding.outcome for finding in comparison.findings}
    outcomes = {metric: known[metric] for metric in metrics if known[metric].better != "neither"}
    found = []
    for one in outcomes.values():
        table = _table(comparison, one)
        disturbed = comparison.busy and busy.depends(one)
        if not disturbed and len(comparison.levels) > 2 and len(table) >= MINIMUM_WORKLOADS:
            found.append(_ranked(one, comparison.levels, table))
    return tuple(found[:MAXIMUM_RANKINGS])


def _table(comparison: Comparison, one: Outcome) -> list[list[float]]:
    """A row a stratum: the mean of every level, greater is better."""
    found: dict[str, dict[str, list[float]]] = {}
    for value in comparison.values.get(one.metric, ()):
        found.setdefault(value.stratum, {}).setdefault(value.level, []).append(value.value)
    sign = 1.0 if one.better == "higher" else -1.0
    whole = [by_level for by_level in found.values() if len(by_level) == len(comparison.levels)]
    return [
        [sign * _centre(by_level[level], one.kind) for level in comparison.levels]
        for by_level in whole
    ]


def _centre(values: Sequence[float], kind: str) -> float:
    positive = kind == "ratio" and min(values) > 0
    return float(np.exp(np.mean(np.log(values))) if positive else np.mean(values))


def _ranked(one: Outcome, levels: Sequence[str], table: Sequence[Sequence[float]]) -> Ranking:
    ranks = significance.average_ranks(table)
    order = [int(at) for at in np.argsort(ranks, kind="stable")]
    ordered = [float(ranks[at]) for at in order]
    friedman = significance.friedman(table)
    critical = significance.critical_difference(len(levels), len(table))
    columns = np.array(table).T
    ps = [
        significance.signed_rank(columns[b] - columns[a]).p
        for a, b in itertools.combinations(range(len(levels)), 2)
    ]
    different = sum(p is not None and p < ALPHA for p in significance.holm(ps))
    # without a difference anywhere no pair is looked at
    groups = alike(ordered, critical) if friedman.p < ALPHA else ((0, len(levels) - 1),)
    return Ranking(
        one,
        tuple(levels[at] for at in order),
        tuple(ordered),
        len(table),
        critical,
        friedman,
        groups,
        different,
    )


def alike(ranks: Sequence[float], critical: float) -> tuple[tuple[int, int], ...]:
    """Of ascending ranks the longest stretches that span no more than the critical difference; none inside another."""
    found: list[tuple[int, int]] = []
    for first, rank in enumerate(ranks):
        last = max(at for at, other in enumerate(ranks) if other - rank <= critical)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return tuple(found)


def figure(evidence: Evidence) -> Drawing | None:
    found = rankings(
        evidence.comparison,
        [finding.row.metric for finding in wording.headlines(evidence.comparison)],
    )
    if not found:
        return None
    rows = -(-len(found[0].levels) // 2)
    inches = 0.8 + 0.2 * rows + 0.09 * max(len(one.groups) for one in found)
    caption = (
        f"Mean rank over {found[0].n_workloads} workloads; 1, on the left, is best. Thick bars join levels that are not shown to "
        "differ: their ranks lie within the critical difference (CD, Nemenyi, 5 %), or Friedman’s test finds no difference at "
        f"all. {' '.join(map(_told, found))}"
    )
    paint = partial(_paint, found, evidence.colours)
    return Drawing(
        "ranks", "Critical differences of mean ranks", caption, 0.2 + inches * len(found), paint
    )


def _paint(found: Sequence[Ranking], colours: Colours, canvas: Canvas) -> None:
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
        axes.plot(
            [one.ranks[first], one.ranks[last]],
            [height, height],
            color=INK,
            linewidth=3,
            solid_capstyle="round",
        )
    for at, (level, rank) in enumerate(zip(one.levels, one.ranks, strict=True)):
        is_left = at < left
        height = below + step * (at if is_left else count - 1 - at) + 0.4
        edge = 1 - 0.04 * count if is_left else count + 0.04 * count
        axes.plot(
            [rank, rank, edge], [0, height, height], color=colours[level], linewidth=1.1, zorder=1
        )
        axes.scatter([rank], [0], s=16, color=colours[level], zorder=3)
        name = (
            f"{shortened(level, 30)}  {rank:.2f}"
            if is_left
            else f"{rank:.2f}  {shortened(level, 30)}"
        )
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


ANALYSIS = Analysis(figures={130: figure})
