"""Throughput against memory: which levels no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.canvas import (
    GRID,
    JOIN,
    Colours,
    Drawing,
    at_most,
    frame,
    paneled,
    unit_of,
    with_errors,
)
from experiments.comparison.runs.pairing import natural
from experiments.comparison.statistics import estimates
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.findings import Comparison
from experiments.metrics import Outcome, outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATES = (
    *("train/images_per_second", "train/examples_per_second"),
    *("features/images_per_second", "inference/examples_per_second"),
)
MEMORIES = ("memory/peak_device_bytes", "memory/peak_rss_bytes")


@dataclass(frozen=True)
class Spot:
    """One level: geometric means over runs with 95 % t intervals. `on_front`: no other level is faster with no more memory."""

    level: str
    memory: Estimate
    rate: Estimate
    on_front: bool


@dataclass(frozen=True)
class Tradeoff:
    """The levels of one stratum."""

    stratum: str
    memory: Outcome
    rate: Outcome
    spots: tuple[Spot, ...]


def tradeoffs(comparison: Comparison) -> tuple[Tradeoff, ...]:
    """One a stratum in which at least two levels have both; the device's memory where all those levels tell it."""
    rate = next((metric for metric in RATES if comparison.values.get(metric)), "")
    found = []
    for stratum in sorted(
        {value.stratum for value in comparison.values.get(rate, ())}, key=natural
    ):
        rates = _means(comparison, rate, stratum)
        memories = [(metric, _means(comparison, metric, stratum)) for metric in MEMORIES]
        metric, memory = max(memories, key=lambda one: len(one[1].keys() & rates.keys()))
        both = {
            level: (memory[level], rates[level])
            for level in comparison.levels
            if level in memory and level in rates
        }
        if len(both) > 1:
            found.append(Tradeoff(stratum, outcome(metric), outcome(rate), _placed(both)))
    return tuple(found)


def _placed(both: dict[str, tuple[Estimate, Estimate]]) -> tuple[Spot, ...]:
    front = on_front([(memory.value, rate.value) for memory, rate in both.values()])
    return tuple(
        Spot(level, memory, rate, top)
        for (level, (memory, rate)), top in zip(both.items(), front, strict=True)
    )


def on_front(places: Sequence[tuple[float, float]]) -> list[bool]:
    """Of (cost, gain) pairs, which no other one beats: no greater cost, no smaller gain, and better in one of them."""
    return [
        not any(
            cost <= own_cost and gain >= own_gain and (cost, gain) != (own_cost, own_gain)
            for cost, gain in places
        )
        for own_cost, own_gain in places
    ]


def _means(comparison: Comparison, metric: str, stratum: str) -> dict[str, Estimate]:
    by_level: dict[str, list[float]] = {}
    for value in comparison.values.get(metric, ()):
        if value.stratum == stratum and value.value > 0:
            by_level.setdefault(value.level, []).append(value.value)
    return {
        level: estimates.exponential(estimates.mean(np.log(values)))
        for level, values in by_level.items()
    }


def figure(evidence: Evidence) -> Drawing | None:
    found = tradeoffs(evidence.comparison)
    panels = [partial(_front, tradeoff=one, colours=evidence.colours) for one in found]
    caption = (
        "Geometric means over runs with 95 % t intervals. Filled: on the Pareto front, no other level is faster with as little "
        "memory; hollow: another is at least as good in both. The front goes by means alone: what is certain, the verdicts say."
    )
    a_row = 2 if len(found) < 3 else 3
    return paneled(
        "memory",
        "Throughput against memory",
        caption,
        evidence.colours,
        panels,
        panel_inches=2.7 if a_row == 2 else 2.2,
        a_row=a_row,
    )


def _front(axes: Axes, tradeoff: Tradeoff, colours: Colours) -> None:
    spots = tradeoff.spots
    across = wording.scale(tradeoff.memory.unit, [spot.memory.value for spot in spots])
    up = wording.scale(tradeoff.rate.unit, [spot.rate.value for spot in spots])
    xs, x_errors = with_errors([spot.memory for spot in spots], across.factor)
    ys, y_errors = with_errors([spot.rate for spot in spots], up.factor)
    front = sorted((x, y) for x, y, spot in zip(xs, ys, spots, strict=True) if spot.on_front)
    axes.plot(
        *zip(*front, strict=True), color=JOIN, linewidth=1.6, drawstyle="steps-post", zorder=1
    )
    edges = [colours[spot.level] for spot in spots]
    faces = [
        colour if spot.on_front else "white" for spot, colour in zip(spots, edges, strict=True)
    ]
    ecolor: Any = edges  # one a level, which the stubs do not know
    axes.errorbar(
        xs, ys, y_errors, x_errors, fmt="none", ecolor=ecolor, elinewidth=1.2, alpha=0.6, zorder=2
    )
    axes.scatter(xs, ys, s=44, facecolors=faces, edgecolors=edges, linewidths=1.5, zorder=3)
    frame(axes, tradeoff.rate.label, tradeoff.stratum, unit_of(tradeoff.rate, up.unit))
    axes.margins(x=0.15)
    at_most(axes.xaxis, 5)
    axes.set_xlabel(f"{tradeoff.memory.label}, {unit_of(tradeoff.memory, across.unit)}")
    axes.grid(axis="x", color=GRID, linewidth=0.6)


ANALYSIS = Analysis(figures={110: figure})
