"""Throughput against batch size, and the size beyond which nothing is gained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Cell, Header, Line, Section
from experiments.comparison.report.tables import number
from experiments.comparison.runs import raw as raw_values
from experiments.comparison.runs.environment import Value
from experiments.comparison.runs.pairing import natural, plain_name
from experiments.comparison.statistics import significance
from experiments.comparison.statistics.estimates import ROUNDING, Floats, trim
from experiments.comparison.verdicts.decision import ALPHA, MINIMUM_BLOCKS
from experiments.comparison.verdicts.findings import Comparison

MARGIN = 0.02
RATES = ("train/images_per_second", "train/examples_per_second")
FIRST_SIZES = "params.inference_batch_sizes"
ALL_RUNS = "all runs"
CAPTION = (
    "Trimmed geometric means over runs. The limit is the smallest size whose throughput is shown "
    "to be within 2 % of the best. It is determined only if Page’s test shows that throughput "
    "rises with the size. Sizes are compared within blocks, each with all others (Holm)."
)
_INFERENCE = re.compile(r"inference/(?:batch_(\d+)/)?examples_per_second")
_SIZE = re.compile(r"(?:^|, )batch_size=(\d+)(?=, |$)")


@dataclass(frozen=True)
class Limit:
    """Size beyond which nothing is gained.

    Attributes:
        reason: for which it is the limit, or there is none.
        size: the smallest size within 2 % of the best; None if none is shown.
        trend_p: p of Page's test that throughput rises.
    """

    reason: str
    size: int | None = None
    trend_p: float | None = None


@dataclass(frozen=True)
class Curve:
    """Curve of a level's `training` or `inference` over batch sizes.

    Attributes:
        rates: size → examples per second, trimmed geometric mean over the runs, ascending.
    """

    phase: str
    level: str
    stratum: str
    rates: Mapping[int, float]
    limit: Limit


def curves(comparison: Comparison, first_size: int | None = None) -> tuple[Curve, ...]:
    """Return every level's curves over at least two sizes.

    Training has sizes if `batch_size` is the factor or one of the strata.

    Args:
        first_size: the inference batch size whose metrics have none in their key, unless it is
            the runs' own.
    """
    rates = _rates(comparison, first_size)
    place = {level: at for at, level in enumerate(comparison.levels)}
    results, is_busy = [], any(finding.busy for finding in comparison.findings)
    for key in sorted(rates, key=lambda key: (key[0], natural(key[2]), place.get(key[1], -1))):
        by_size = rates[key]
        if len(by_size) > 1:
            logs = {size: np.log(list(by_size[size].values())) for size in sorted(by_size)}
            means = {size: float(np.exp(trim(values).centre)) for size, values in logs.items()}
            limit = Limit("the machine was busy") if is_busy else find_limit(by_size)
            results.append(Curve(*key, means, limit))
    return tuple(results)


def _rates(
    comparison: Comparison, first_size: int | None
) -> dict[tuple[str, str, str], dict[int, dict[str, float]]]:
    rates: dict[tuple[str, str, str], dict[int, dict[str, float]]] = {}
    training = next((metric for metric in RATES if metric in comparison.values), "")
    for metric, values in comparison.values.items():
        matched = _INFERENCE.fullmatch(metric)
        if not matched and metric != training:
            continue
        phase = "inference" if matched else "training"
        own_size = int(matched[1] or first_size or 0) if matched else 0
        for value in values:
            level, stratum, size = value.level, value.stratum, own_size
            if not size:
                level, stratum, size = _trained_size(comparison, value)
            if size and value.value > 0:
                by_size = rates.setdefault((phase, level, stratum), {})
                by_size.setdefault(size, {})[value.block] = value.value
    return rates


def _trained_size(comparison: Comparison, value: Value) -> tuple[str, str, int]:
    """Return level, stratum and size if the batch size is factor or stratum; else a size of 0."""
    if plain_name(comparison.factor) == "batch_size" and value.level.isdecimal():
        return "", value.stratum, int(value.level)
    matched = _SIZE.search(value.stratum)
    stratum = _SIZE.sub("", value.stratum).removeprefix(", ")
    return value.level, stratum, int(matched[1]) if matched else 0


def find_limit(rates: Mapping[int, Mapping[str, float]]) -> Limit:
    """Return the smallest size that is shown to lie within 2 % of the best, if throughput rises.

    Every other size is compared with it, block by block, so the best need not be known: a size is
    within the margin of the best if no other one is faster by the margin (one-sided tests of
    trimmed means of pairs, the greatest p counts). Holm's correction spans the sizes. Page's trend
    test comes first; with two sizes there is no trend to test.

    Args:
        rates: size → block → examples per second.
    """
    sizes = sorted(rates)
    blocks = [block for block in rates[sizes[0]] if all(block in rates[size] for size in sizes)]
    if len(blocks) < MINIMUM_BLOCKS:
        few = f"blocks with all sizes: {len(blocks)}; at least {MINIMUM_BLOCKS} are needed"
        return Limit(few)
    table = np.log([[rates[size][block] for size in sizes] for block in blocks])
    trend = float(stats.page_trend_test(table).pvalue) if len(sizes) > 2 else None
    if trend is not None and trend >= ALPHA:
        return Limit("throughput is not shown to rise with the batch size", trend_p=trend)
    adjusted = significance.holm([_p_within_best(table, at) for at in range(len(sizes))])
    near = [size for size, p in zip(sizes, adjusted, strict=True) if p is not None and p < ALPHA]
    if near and near[0] < sizes[-1]:
        return Limit(f"no other size is faster by {100 * MARGIN:g} % or more", near[0], trend)
    none_near = f"no size below {sizes[-1]} is shown to be within {100 * MARGIN:g} % of the best"
    return Limit(none_near, None, trend)


def _p_within_best(table: Floats, at: int) -> float:
    """Return the p that another column's typical value exceeds this one's by the margin."""
    others = trim((np.delete(table, at, axis=1) - table[:, [at]]).T)
    # Without variance over the blocks the centre decides.
    error = np.where(np.ptp(others.winsorised, axis=1) <= ROUNDING, 0.0, others.error)
    distance = others.centre - np.log1p(MARGIN)
    with np.errstate(divide="ignore"):
        return float(special.stdtr(others.df, distance / error).max())


def from_evidence(evidence: Evidence) -> tuple[Curve, ...]:
    """Return the curves, with the runs' first inference batch size if all runs agree on it."""
    sizes = {next(iter(raw_values.of_inference(run)), 0) for run in evidence.raw} - {0}
    runs = evidence.runs
    if runs is not None and FIRST_SIZES in runs.columns:
        first = {text.partition(",")[0] for text in runs[FIRST_SIZES].dropna().astype(str)}
        sizes |= {int(size) for size in first if size.isdecimal()}
    return curves(evidence.comparison, sizes.pop() if len(sizes) == 1 else None)


def table(evidence: Evidence) -> list[Section]:
    """Return the throughput of every curve by size, and its limit with the reason."""
    rows: list[Line] = []
    for curve in from_evidence(evidence):
        limit = wording.NONE if curve.limit.size is None else str(curve.limit.size)
        rates = (f"{size}: {wording.number(rate)}" for size, rate in curve.rates.items())
        rows.append(
            (
                *(curve.phase, curve.stratum, curve.level or ALL_RUNS, "; ".join(rates)),
                *(Cell(limit, note=curve.limit.reason), wording.p_value(curve.limit.trend_p)),
            )
        )
    header: Header = (
        *("phase", "stratum", evidence.comparison.factor, "batch size: examples/s"),
        *("limit", number("p, trend (Page)")),
    )
    return [Section("Throughput by batch size", CAPTION, header, rows)] if rows else []
