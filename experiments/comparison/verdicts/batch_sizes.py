"""Latency and throughput against batch size, and the size beyond which nothing is gained. Pure functions of run-level values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from experiments.comparison.runs.environment import Value
from experiments.comparison.runs.pairing import natural
from experiments.comparison.statistics import estimates, significance
from experiments.comparison.statistics.estimates import ROUNDING, Estimate, Floats
from experiments.comparison.verdicts.decision import ALPHA, MINIMUM_BLOCKS
from experiments.comparison.verdicts.findings import Comparison

MARGIN = 0.02
RATES = ("train/images_per_second", "train/examples_per_second")
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
    for what, level, stratum in sorted(rates, key=lambda key: (key[0], natural(key[2]), place.get(key[1], -1))):
        by_size = rates[what, level, stratum]
        if len(by_size) > 1:
            slow = seconds.get((what, level, stratum), {})
            points = tuple(_point(size, by_size[size], slow.get(size, {})) for size in sorted(by_size))
            limit = Limit(None, None, comparison.busy) if comparison.busy else find_limit(by_size)
            found.append(Curve(what, level, stratum, points, limit.trend_p, limit.size, limit.reason))
    return tuple(found)


def _gathered(comparison: Comparison, first_size: int | None) -> tuple[dict[tuple[str, str, str], Sizes], ...]:
    rates: dict[tuple[str, str, str], Sizes] = {}
    seconds: dict[tuple[str, str, str], Sizes] = {}
    for metric, values in comparison.values.items():
        if matched := _INFERENCE.fullmatch(metric):
            target = rates if matched[2] == "examples_per_second" else seconds
            if matched[1] or first_size:
                size = int(matched[1] or first_size or 0)
                named = [(("inference", value.level, value.stratum), size, value) for value in values]
            else:  # every run has one size for all that it does
                sized = _sized(comparison, values)
                named = [(("inference", level, stratum), size, value) for level, stratum, size, value in sized]
        elif metric in ("train/step_seconds", _rate(comparison)):
            target = seconds if metric == "train/step_seconds" else rates
            named = [(("training", level, stratum), size, value) for level, stratum, size, value in _sized(comparison, values)]
        else:
            continue
        for key, size, value in named:
            if size and value.value > 0:
                scale = size if target is seconds else 1
                target.setdefault(key, {}).setdefault(size, {})[value.block] = value.value / scale
    return rates, seconds


def _rate(comparison: Comparison) -> str:
    return next((metric for metric in RATES if metric in comparison.values), "")


def _sized(comparison: Comparison, values: tuple[Value, ...]) -> Iterator[tuple[str, str, int, Value]]:
    """Level and stratum without the batch size, and the batch size, where runs differ by it."""
    of_factor = comparison.factor.split(".")[-1] == "batch_size"
    for value in values:
        if of_factor and value.level.isdecimal():
            yield "", value.stratum, int(value.level), value
        elif matched := _SIZE.search(value.stratum):
            yield (
                value.level,
                (value.stratum[: matched.start()] + value.stratum[matched.end() :]).removeprefix(", "),
                int(matched[1]),
                value,
            )


def _point(size: int, rates: Mapping[str, float], seconds: Mapping[str, float]) -> Point:
    return Point(size, _mean(seconds), _mean(rates), len(rates))


def _mean(by_block: Mapping[str, float]) -> Estimate | None:
    return estimates.exponential(estimates.mean(np.log(list(by_block.values())))) if by_block else None


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
        return Limit(None, None, f"{len(blocks)} blocks hold every size; a limit needs {MINIMUM_BLOCKS}")
    table = np.log([[rates[size][block] for size in sizes] for block in blocks])
    trend = significance.page(table).p if len(sizes) > 2 else None
    if trend is not None and trend >= ALPHA:
        return Limit(trend, None, "throughput is not shown to rise with the batch size")
    adjusted = significance.holm([_p_within_best(table, at) for at in range(len(sizes))])
    near = [size for size, p in zip(sizes, adjusted, strict=True) if p is not None and p < ALPHA]
    if near and near[0] < sizes[-1]:
        return Limit(trend, near[0], f"no other size is faster by {100 * MARGIN:g} % or more")
    return Limit(trend, None, f"no size below {sizes[-1]} is shown to be within {100 * MARGIN:g} % of the best")


def _p_within_best(table: Floats, at: int) -> float:
    """Return the p that some other column's mean exceeds this one's by the margin, on the log scale."""
    others = np.delete(table, at, axis=1) - table[:, [at]]
    ps = stats.ttest_1samp(others, np.log1p(MARGIN), alternative="less").pvalue
    # where the blocks do not vary, the mean alone decides
    constant = np.ptp(others, axis=0) <= ROUNDING
    return float(np.where(constant, others.mean(axis=0) >= np.log1p(MARGIN), ps).max())
