"""Latency and throughput against batch size, and the size beyond which nothing is gained. Pure functions of run-level values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.canvas import (
    INK,
    Colours,
    Drawing,
    frame,
    log_ticks,
    paneled,
    plain_ticks,
    with_errors,
)
from experiments.comparison.report.sections import Header, Line, Section
from experiments.comparison.report.tables import number, under
from experiments.comparison.runs import raw as raw_values
from experiments.comparison.runs.environment import Value
from experiments.comparison.runs.pairing import natural, plain_name
from experiments.comparison.statistics import estimates, significance
from experiments.comparison.statistics.estimates import ROUNDING, Estimate, Floats
from experiments.comparison.verdicts.decision import ALPHA, MINIMUM_BLOCKS
from experiments.comparison.verdicts.findings import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN = 0.02
RATES = ("train/images_per_second", "train/examples_per_second")
FIRST_SIZES = "params.inference_batch_sizes"
# Of an octave of batch sizes.
SPREAD = 0.2
WIDE = 3.0
ALL_RUNS = "all runs"
_INFERENCE = re.compile(r"inference/(?:batch_(\d+)/)?(examples_per_second|latency_seconds_p50)")
_SIZE = re.compile(r"(?:^|, )batch_size=(\d+)(?=, |$)")
# size → block → value
Sizes = dict[int, dict[str, float]]


@dataclass(frozen=True)
class Point:
    """One batch size: geometric means over runs with 95 % t intervals; None where it was not measured."""

    size: int
    seconds_per_example: Estimate | None
    examples_per_second: Estimate | None
    n_runs: int


@dataclass(frozen=True)
class Curve:
    """One level's `training` or `inference` over batch sizes, ascending.

    limit: the smallest size within 2 % of the best, None where none is shown. trend_p: Page's test that throughput rises.
    """

    what: str
    level: str
    stratum: str
    points: tuple[Point, ...]
    trend_p: float | None
    limit: int | None
    reason: str


@dataclass(frozen=True)
class Limit:
    """What was found about the size beyond which nothing is gained."""

    trend_p: float | None
    size: int | None
    reason: str


def curves(comparison: Comparison, first_size: int | None = None) -> tuple[Curve, ...]:
    """Every level's curves over at least two sizes.

    first_size: the inference batch size whose metrics have none in their key, where that is not the runs' own. Training has
    sizes where `batch_size` is the factor or one of the strata.
    """
    rates, seconds = _gathered(comparison, first_size)
    found = []
    place = {level: at for at, level in enumerate(comparison.levels)}
    for what, level, stratum in sorted(
        rates, key=lambda key: (key[0], natural(key[2]), place.get(key[1], -1))
    ):
        by_size = rates[what, level, stratum]
        if len(by_size) > 1:
            slow = seconds.get((what, level, stratum), {})
            points = tuple(
                _point(size, by_size[size], slow.get(size, {})) for size in sorted(by_size)
            )
            limit = Limit(None, None, comparison.busy) if comparison.busy else find_limit(by_size)
            found.append(
                Curve(what, level, stratum, points, limit.trend_p, limit.size, limit.reason)
            )
    return tuple(found)


def _gathered(
    comparison: Comparison, first_size: int | None
) -> tuple[dict[tuple[str, str, str], Sizes], ...]:
    rates: dict[tuple[str, str, str], Sizes] = {}
    seconds: dict[tuple[str, str, str], Sizes] = {}
    for metric, values in comparison.values.items():
        if matched := _INFERENCE.fullmatch(metric):
            target = rates if matched[2] == "examples_per_second" else seconds
            if matched[1] or first_size:
                size = int(matched[1] or first_size or 0)
                named = [
                    (("inference", value.level, value.stratum), size, value) for value in values
                ]
            else:  # every run has one size for all that it does
                sized = _sized(comparison, values)
                named = [
                    (("inference", level, stratum), size, value)
                    for level, stratum, size, value in sized
                ]
        elif metric in ("train/step_seconds", _rate(comparison)):
            target = seconds if metric == "train/step_seconds" else rates
            named = [
                (("training", level, stratum), size, value)
                for level, stratum, size, value in _sized(comparison, values)
            ]
        else:
            continue
        for key, size, value in named:
            if size and value.value > 0:
                scale = size if target is seconds else 1
                target.setdefault(key, {}).setdefault(size, {})[value.block] = value.value / scale
    return rates, seconds


def _rate(comparison: Comparison) -> str:
    return next((metric for metric in RATES if metric in comparison.values), "")


def _sized(
    comparison: Comparison, values: tuple[Value, ...]
) -> Iterator[tuple[str, str, int, Value]]:
    """Level and stratum without the batch size, and the batch size, where runs differ by it."""
    of_factor = comparison.factor.split(".")[-1] == "batch_size"
    for value in values:
        if of_factor and value.level.isdecimal():
            yield "", value.stratum, int(value.level), value
        elif matched := _SIZE.search(value.stratum):
            yield (
                value.level,
                (value.stratum[: matched.start()] + value.stratum[matched.end() :]).removeprefix(
                    ", "
                ),
                int(matched[1]),
                value,
            )


def _point(size: int, rates: Mapping[str, float], seconds: Mapping[str, float]) -> Point:
    return Point(size, _mean(seconds), _mean(rates), len(rates))


def _mean(by_block: Mapping[str, float]) -> Estimate | None:
    return (
        estimates.exponential(estimates.mean(np.log(list(by_block.values())))) if by_block else None
    )


def find_limit(rates: Mapping[int, Mapping[str, float]]) -> Limit:
    """Return the smallest size that is shown to lie within 2 % of the best one, if throughput rises at all.

    Every other size is compared with it, block by block, so the best need not be known: a size is within the margin of the
    best where no other one is faster by the margin (one-sided paired t tests, the greatest p counts). Holm's correction spans
    the sizes. Page's trend test comes first; with two sizes there is no trend to test.

    Args:
        rates: size → block → examples per second.
    """
    sizes = sorted(rates)
    blocks = [block for block in rates[sizes[0]] if all(block in rates[size] for size in sizes)]
    if len(blocks) < MINIMUM_BLOCKS:
        return Limit(
            None, None, f"{len(blocks)} blocks hold every size; a limit needs {MINIMUM_BLOCKS}"
        )
    table = np.log([[rates[size][block] for size in sizes] for block in blocks])
    trend = significance.page(table).p if len(sizes) > 2 else None
    if trend is not None and trend >= ALPHA:
        return Limit(trend, None, "throughput is not shown to rise with the batch size")
    adjusted = significance.holm([_p_within_best(table, at) for at in range(len(sizes))])
    near = [size for size, p in zip(sizes, adjusted, strict=True) if p is not None and p < ALPHA]
    if near and near[0] < sizes[-1]:
        return Limit(trend, near[0], f"no other size is faster by {100 * MARGIN:g} % or more")
    return Limit(
        trend,
        None,
        f"no size below {sizes[-1]} is shown to be within {100 * MARGIN:g} % of the best",
    )


def _p_within_best(table: Floats, at: int) -> float:
    """Return the p that some other column's mean exceeds this one's by the margin, on the log scale."""
    others = np.delete(table, at, axis=1) - table[:, [at]]
    ps = stats.ttest_1samp(others, np.log1p(MARGIN), alternative="less").pvalue
    # where the blocks do not vary, the mean alone decides
    constant = np.ptp(others, axis=0) <= ROUNDING
    return float(np.where(constant, others.mean(axis=0) >= np.log1p(MARGIN), ps).max())


def of_evidence(evidence: Evidence) -> tuple[Curve, ...]:
    """Return the curves, with the runs' own first size of inference."""
    return curves(evidence.comparison, first_size(evidence))


def first_size(evidence: Evidence) -> int | None:
    """Return the inference batch size whose metrics have none in their key; None where runs do not say or do not agree."""
    sizes = {next(iter(raw_values.of_inference(run)), 0) for run in evidence.raw} - {0}
    runs = evidence.runs
    if runs is not None and FIRST_SIZES in runs.columns:
        first = {text.partition(",")[0] for text in runs[FIRST_SIZES].dropna().astype(str)}
        sizes |= {int(size) for size in first if size.isdecimal()}
    return sizes.pop() if len(sizes) == 1 else None


def sentences(evidence: Evidence) -> list[str]:
    """Return which batch size to take, a sentence a curve, where batch sizes are what is compared."""
    if plain_name(evidence.comparison.factor) != "batch_size":
        return []
    lines = []
    for curve in curves(evidence.comparison):
        where = ", ".join(
            filter(None, [curve.stratum.removeprefix("framework="), curve.level, curve.what])
        )
        p = curve.trend_p
        if not curve.limit:
            lines.append(f"{where}: no batch size is named, {curve.reason}.")
            continue
        shown = "" if p is None else "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
        rises = f"; throughput rises with the size (Page's trend test, {shown})" if shown else ""
        lines.append(f"{where}: a batch of {curve.limit} is enough, {curve.reason}{rises}.")
    return lines


def table(evidence: Evidence) -> list[Section]:
    caption = (
        "The limit is the smallest size that is shown to lie within 2 % of the best one, looked for where Page’s test "
        "shows that throughput rises with the size at all. Sizes are compared inside blocks, each with all others (Holm)."
    )
    rows: list[Line] = [
        (
            *(
                curve.what,
                curve.stratum,
                curve.level or ALL_RUNS,
                ", ".join(str(point.size) for point in curve.points),
            ),
            *(
                wording.NONE if curve.limit is None else str(curve.limit),
                curve.reason,
                wording.p_value(curve.trend_p),
            ),
        )
        for curve in of_evidence(evidence)
    ]
    header: Header = (
        "what",
        under(""),
        evidence.comparison.factor,
        number("sizes"),
        number("limit"),
        "why",
        number("p, trend (Page)"),
    )
    return [Section("Batch-size limits", caption, header, rows)] if rows else []


def figure(evidence: Evidence) -> Drawing | None:
    found = of_evidence(evidence)
    groups = dict.fromkeys((curve.what, curve.stratum) for curve in found)
    order = list(evidence.colours)
    levels = sorted(
        {curve.level for curve in found},
        key=lambda level: order.index(level) if level in order else -1,
    )
    colours = {level: evidence.colours.get(level, INK) for level in levels}
    panels = []
    for what, stratum in groups:
        inside = [curve for curve in found if (curve.what, curve.stratum) == (what, stratum)]
        if any(point.seconds_per_example for curve in inside for point in curve.points):
            panels.append(partial(_against_size, curves=inside, colours=colours, of_time=True))
        panels.append(partial(_against_size, curves=inside, colours=colours, of_time=False))
    caption = (
        "Geometric means over runs with 95 % t intervals. A ring marks the limit: the smallest size that is shown to lie "
        f"within {wording.percent(MARGIN)} of the best one. The table below says what each limit rests on."
    )
    named = {level or ALL_RUNS: colour for level, colour in colours.items()}
    return paneled(
        "batches",
        "Latency and throughput against batch size",
        caption,
        named,
        panels,
        panel_inches=2.5,
        a_row=2,
    )


def _against_size(axes: Axes, curves: Sequence[Curve], colours: Colours, *, of_time: bool) -> None:
    unit = "s" if of_time else "1/s"
    found = [
        (
            curve,
            [
                (p.size, p.seconds_per_example if of_time else p.examples_per_second)
                for p in curve.points
            ],
        )
        for curve in curves
    ]
    known = [
        (curve, [(size, one) for size, one in points if one is not None]) for curve, points in found
    ]
    scale = wording.scale(unit, [one.value for _, points in known for _, one in points])
    sizes = sorted({size for _, points in known for size, _ in points})
    axes.set_xscale("log", base=2)
    for at, (curve, points) in enumerate(known):
        # side by side, so that intervals of levels that agree can be told apart
        shift = 2.0 ** (SPREAD * (at / (len(known) - 1) - 0.5)) if len(known) > 1 else 1.0
        _line(
            axes,
            [size * shift for size, _ in points],
            [one for _, one in points],
            scale.factor,
            colours[curve.level],
        )
        for size, one in points:
            if size == curve.limit:
                axes.scatter(
                    [size * shift],
                    [one.value / scale.factor],
                    s=90,
                    facecolors="none",
                    edgecolors=INK,
                    linewidths=1.1,
                    zorder=4,
                )
    values = [one.value / scale.factor for _, points in known for _, one in points]
    if max(values) / min(values) > WIDE:
        axes.set_yscale("log")
    title = f"{curves[0].what}: {'median time per example' if of_time else 'throughput'}"
    frame(axes, title, curves[0].stratum, scale.unit if of_time else "examples/s")
    if axes.get_yscale() == "log":
        plain_ticks(axes.yaxis, log_ticks(*axes.get_ylim()))
    plain_ticks(axes.xaxis, sizes)
    axes.set_xlabel("batch size, examples")


def _line(
    axes: Axes, xs: Sequence[float], estimates: Sequence[Estimate], factor: float, colour: str
) -> None:
    values, errors = with_errors(estimates, factor)
    axes.errorbar(
        xs,
        values,
        errors,
        color=colour,
        linewidth=1.4,
        marker="o",
        markersize=4,
        elinewidth=2.4,
        zorder=3,
    )


ANALYSIS = Analysis(sentences={40: sentences}, tables={110: table}, figures={100: figure})
