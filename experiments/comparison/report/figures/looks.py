"""How the intervals of a campaign narrowed, look by look, until it was settled or stopped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from experiments.comparison.report import wording
from experiments.comparison.report.figures.canvas import (
    BAND,
    GRID,
    SOFT,
    Colours,
    Drawing,
    Scene,
    frame,
    log_ticks,
    paneled,
    plain_ticks,
    unit_of,
)
from experiments.comparison.verdicts import fan
from experiments.comparison.verdicts.fan import Seen
from experiments.comparison.verdicts.findings import Finding

MAX_TICKS = 6


def fans(scene: Scene) -> Drawing | None:
    """A panel for every headline and stratum of a campaign whose number of blocks was not fixed."""
    panels: dict[tuple[str, str], list[tuple[Finding, Sequence[Seen]]]] = {}
    for finding in wording.headlines(scene.comparison):
        if seen := fan.of_finding(finding):
            panels.setdefault((finding.row.metric, finding.row.stratum), []).append((finding, seen))
    painted = [partial(_fan, levels=levels, colours=scene.colours) for levels in panels.values()]
    shown = {finding.row.b for levels in panels.values() for finding, _ in levels}
    colours = {level: colour for level, colour in scene.colours.items() if level in shown}
    return paneled("looks", "Intervals, look by look", _caption(scene), colours, painted, panel_inches=2.3)


def _caption(scene: Scene) -> str:
    looks = {one.blocks: one for one in scene.comparison.looks}
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
    axes.axhspan(1 / (1 + row.margin) if ratio else -row.margin, 1 + row.margin if ratio else row.margin, color=BAND, zorder=0)
    axes.axhline(1 if ratio else 0, color=SOFT, linewidth=0.8, zorder=1)
    for finding, seen in levels:
        colour, blocks = colours[finding.row.b], [one.blocks for one in seen]
        for part, alpha in (("interval", 0.18), ("inner", 0.3)):
            bounds = [getattr(one, part) for one in seen]
            lows, highs = [one.low for one in bounds], [one.high for one in bounds]
            axes.fill_between(blocks, lows, highs, color=colour, alpha=alpha, linewidth=0, zorder=2)
            axes.vlines(blocks, lows, highs, color=colour, linewidth=0.8, alpha=0.6, zorder=2)
        axes.plot(blocks, [one.interval.value for one in seen], color=colour, linewidth=1.5, marker="o", markersize=3, zorder=3)
    frame(axes, outcome.label, row.stratum, f"ratio to {row.a}" if ratio else f"minus {row.a}, {unit_of(outcome)}")
    if ratio:
        low, high = axes.get_ylim()
        near = [tick for tick in MaxNLocator(4).tick_values(low, high) if low <= tick <= high]
        plain_ticks(axes.yaxis, near if high < 4 * low else log_ticks(low, high), "×")
    _ticks(axes, sorted({one.blocks for _, seen in levels for one in seen}))
    axes.set_xlabel("blocks")


def _ticks(axes: Axes, blocks: Sequence[int]) -> None:
    """At the looks: at the last, and at others where there is room."""
    shown = {*blocks[:: -(-len(blocks) // MAX_TICKS)], blocks[-1]}
    axes.xaxis.set_major_locator(FixedLocator(sorted(shown)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x", color=GRID, linewidth=0.6)
