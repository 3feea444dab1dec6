"""What several workers bring over one: their speed-up beside the ideal, what the exchange costs, and what was proven before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.canvas import (
    GRID,
    LEVELS,
    SOFT,
    Colours,
    Drawing,
    frame,
    paneled,
    plain_ticks,
    with_errors,
)
from experiments.comparison.report.sections import Section
from experiments.comparison.runs.environment import Value
from experiments.comparison.statistics import estimates
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.findings import Comparison, Finding

if TYPE_CHECKING:
    from matplotlib.axes import Axes

THROUGHPUT = "train/examples_per_second"
STEP, ALONE = "train/step_seconds", "train/alone_step_seconds"
WORKERS = "check/workers"
SHARES = {
    "strong": "the batch is shared among the workers",
    "weak": "each worker has a whole batch",
}
ERROR, LIMIT = "check/weights_error", "check/weights_error_limit"
Groups = Mapping[str, tuple[int, str]]
IDEAL, EXACT = "ideal", "exact gradients"
SPREAD = 0.06  # of an octave of workers: intervals of several compressions stand side by side


@dataclass(frozen=True)
class Gain:
    """Of a group of workers over one.

    exposed: the share of a step that would be saved if nothing were exchanged, None where too few blocks measured that;
    exposed_seconds: the same in seconds.
    """

    finding: Finding
    workers: int
    exposed: Estimate | None
    exposed_seconds: float | None

    @property
    def stratum(self) -> str:
        return self.finding.row.stratum

    @property
    def level(self) -> str:
        return self.finding.row.b

    @property
    def speedup(self) -> Estimate:
        row = self.finding.row
        assert row.estimate is not None
        return Estimate(
            row.estimate, row.ci_low or 0.0, math.inf if row.ci_high is None else row.ci_high
        )

    @property
    def efficiency(self) -> Estimate:
        """The speed-up over the number of workers."""
        return Estimate(
            *(
                one / self.workers
                for one in (self.speedup.value, self.speedup.low, self.speedup.high)
            )
        )

    @property
    def overhead(self) -> Estimate:
        """1 − (steps a second of k workers) / (steps a second of one), each with as many images: what efficiency lacks of 1.

        Source: Comparing the training speed of PyTorch and TensorFlow (Huazhong University of Science and Technology, 2022).
        """
        return _missing(self.efficiency)


def gains(comparison: Comparison) -> list[Gain]:
    """Every group of several workers over the baseline of one, stratum by stratum; empty where no run has several workers."""
    workers = {(one.stratum, one.level): int(one.value) for one in last_check(comparison, WORKERS)}
    of_one = [
        one
        for one in comparison.findings
        if one.row.a == comparison.baseline and one.row.estimate is not None
    ]
    by_metric = {(one.row.metric, one.row.stratum, one.row.b): one for one in of_one}
    return [
        _gain(one, count, by_metric)
        for one in of_one
        if one.row.metric == THROUGHPUT
        and (count := workers.get((one.row.stratum, one.row.b), 1)) > 1
    ]


def last_check(comparison: Comparison, metric: str) -> list[Value]:
    """What the last run of each level in each stratum says of how it was measured."""
    return list(
        {(one.stratum, one.level): one for one in comparison.checks.get(metric, ())}.values()
    )


def _gain(
    finding: Finding, workers: int, by_metric: Mapping[tuple[str, str, str], Finding]
) -> Gain:
    place = (finding.row.stratum, finding.row.b)
    step, alone = (by_metric.get((metric, *place)) for metric in (STEP, ALONE))
    if step is None or alone is None or step.b_value is None or alone.b_value is None:
        return Gain(finding, workers, None, None)
    without = {pair.block: pair.b for pair in alone.pairs}
    blocks = [pair.block for pair in step.pairs if pair.block in without]
    steps = {pair.block: pair.b for pair in step.pairs}
    if len(blocks) < estimates.MINIMUM_VALUES:
        return Gain(finding, workers, None, None)
    logs = estimates.log_ratios(
        [steps[block] for block in blocks], [without[block] for block in blocks]
    )
    return Gain(
        finding,
        workers,
        _missing(estimates.exponential(estimates.mean(logs))),
        step.b_value - alone.b_value,
    )


def _missing(share: Estimate) -> Estimate:
    """What a share lacks of 1."""
    return Estimate(1 - share.value, 1 - share.high, 1 - share.low)


def sections(comparison: Comparison, groups: Groups, scaling: str) -> list[Section]:
    """Return speed-up and overhead, where any group has an estimate, and the proof of each.

    groups: level -> workers and compression.
    """
    found = gains(comparison)
    told = [_speedups(found, scaling), _overheads(found)] if found else []
    return [*told, *_proofs(comparison, groups)]


def _speedups(found: Sequence[Gain], scaling: str) -> Section:
    caption = (
        f"Images a second of all workers together over those of one, {scaling} scaling: {SHARES[scaling]}. Efficiency is the "
        "speed-up over the ideal, which is the number of workers. Workers on one machine share its memory and caches."
    )
    header = (
        "network",
        "workers",
        "speed-up",
        "95 % interval",
        "ideal",
        "efficiency",
        "95 % interval",
    )
    lines = [
        (
            *(
                one.stratum,
                one.level,
                f"{one.speedup.value:.2f}×",
                wording.interval(one.finding),
                f"{one.workers}×",
            ),
            *(_percent(one.efficiency.value), _interval(one.efficiency)),
        )
        for one in found
    ]
    return Section("Speed-up by workers", caption, header, lines)


def _overheads(found: Sequence[Gain]) -> Section:
    caption = (
        "Overhead is the published formula, 1 − (steps a second of k workers) / (steps a second of one), of equal batches a "
        "worker; with a shared batch images take the place of steps. Exposed is measured: by how much the median step is longer "
        "than one after which no gradients are exchanged, in the same cell, as the first worker sees it; waiting for a slower "
        "worker is part of it. Beside each other is the rest, 1 − (1 − overhead) / (1 − exposed): what workers lose "
        "that share a machine, or have fewer images each, without any exchange. Below zero: nothing is lost."
    )
    header = (
        *("network", "workers", "overhead", "95 % interval", "exposed, ms a step", "exposed"),
        *("95 % interval", "beside each other"),
    )
    lines = [
        (
            *(one.stratum, one.level, _percent(one.overhead.value), _interval(one.overhead)),
            *_exposed(one),
        )
        for one in found
    ]
    return Section("Communication overhead", caption, header, lines)


def _exposed(one: Gain) -> tuple[str, str, str, str]:
    if one.exposed is None or one.exposed_seconds is None:
        return (wording.NONE,) * 4
    rest = 1 - (1 - one.overhead.value) / (1 - one.exposed.value)
    return (
        f"{1_000 * one.exposed_seconds:.2f} ms",
        _percent(one.exposed.value),
        _interval(one.exposed),
        _percent(rest),
    )


def _proofs(comparison: Comparison, groups: Groups) -> list[Section]:
    """Nothing where no run says what was proven."""
    caption = (
        "Before anything is measured the workers of a group and one worker with all of their images train a few steps in "
        "float64. By how much the weights differ then: exact averaging as a share of the largest weight, compression as a share "
        "of the way that the weights have made (L2 norms), of which it may lose so much by its own arithmetic. A group above "
        "its limit is not measured."
    )
    limits = {(one.stratum, one.level): one.value for one in last_check(comparison, LIMIT)}
    lines = [
        (
            one.stratum,
            one.level,
            groups[one.level][1],
            f"{one.value:.1e}",
            f"{limits[one.stratum, one.level]:.1e}",
        )
        for one in last_check(comparison, ERROR)
    ]
    header = ("network", "workers", "compression", "weights differ by", "at most")
    return (
        [Section("Workers against one, before measuring", caption, header, lines)] if lines else []
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %".replace("-", wording.MINUS)


def _interval(share: Estimate) -> str:
    if not abs(share.low) < 10 or not abs(share.high) < 10:  # of one block: unbounded
        return wording.NONE
    low, high = wording.outwards(share.low, share.high, decimals=3)
    return f"{_percent(low)} to {_percent(high)}"


def figure(evidence: Evidence) -> Drawing | None:
    found = gains(evidence.comparison)
    series = list(dict.fromkeys(_series(one) for one in found))
    colours = {IDEAL: SOFT, **dict(zip(series, LEVELS, strict=False))}
    panels = [
        partial(
            _against_ideal, found=[one for one in found if one.stratum == stratum], colours=colours
        )
        for stratum in dict.fromkeys(one.stratum for one in found)
    ]
    caption = (
        "Images a second of all workers over those of one, geometric means over paired blocks with 95 % intervals; the grey line "
        "is the ideal, as many times as there are workers. Strong scaling shares a batch among the workers, weak scaling "
        "gives each a whole one: they stand in panels of their own."
    )
    return paneled(
        "speedup", "Speed-up by workers", caption, colours, panels, panel_inches=2.5, a_row=2
    )


def _series(one: Gain) -> str:
    """The level without its number of workers: what is done with the gradients."""
    return one.level.partition(" ")[2] or EXACT


def _against_ideal(axes: Axes, found: Sequence[Gain], colours: Colours) -> None:
    counts = sorted({1, *(one.workers for one in found)})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.plot(counts, counts, color=colours[IDEAL], linewidth=1.0, linestyle="--", zorder=1)
    series = list(dict.fromkeys(_series(one) for one in found))
    for at, name in enumerate(series):
        shift = 2.0 ** (SPREAD * (at - (len(series) - 1) / 2))
        own = sorted((one for one in found if _series(one) == name), key=lambda one: one.workers)
        places, line = (
            [1, *(one.workers * shift for one in own)],
            [1.0, *(one.speedup.value for one in own)],
        )
        axes.plot(
            places, line, color=colours[name], linewidth=1.5, marker="o", markersize=4, zorder=3
        )
        values, errors = with_errors([one.speedup for one in own])
        axes.errorbar(
            places[1:],
            values,
            errors,
            fmt="none",
            ecolor=colours[name],
            elinewidth=1.6,
            alpha=0.6,
            zorder=2,
        )
    frame(axes, "speed-up", found[0].stratum, "× one worker")
    plain_ticks(axes.xaxis, counts)
    plain_ticks(axes.yaxis, counts, "×")
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_xlabel("workers")


ANALYSIS = Analysis(figures={30: figure})  # its study adds the tables
