"""What something costs, as sentences and a table of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from experiments.comparison.report import wording
from experiments.comparison.report.sections import Cell, Column, Section
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.costs import NOT_SHOWN, REFUTED, SHOWN, Cost

HEADER = ("where", "outcome", "harness", Column("ratio", numeric=True), "95 % interval", "at most the bound", "blocks")
STYLES = {SHOWN: "alike", NOT_SHOWN: "open", REFUTED: "worse"}


def sentences(found: Sequence[Cost]) -> list[str]:
    """How many points were answered which way, then each mean over all points of a framework."""
    points = Counter(one.answer for one in found if one.strata == 1)
    told = [f"Cost at most the bound: {points[SHOWN]} shown, {points[NOT_SHOWN]} not shown, {points[REFUTED]} refuted."]
    for one in found:
        if one.strata > 1 and one.ratio:
            mean = f"{one.ratio.value:.3f} times the plain loop (95 % CI {_interval(one.ratio)}, {one.strata} points)"
            told.append(f"{one.where}, {one.b}, {one.outcome.label}: {mean}: {one.answer}.")
    return told


def section(found: Sequence[Cost], margin: float) -> Section:
    """For the report."""
    caption = (
        f"Time by a harness over time by the framework’s plain loop. “Shown”: the whole 95 % interval is at most {1 + margin:g}; "
        "“refuted”: all of it is beyond; “not shown”: neither. Each line is a question of its own, without "
        "a correction for their number. “All” is the geometric mean over the points of a framework, averaged within each block."
    )
    return Section("Does measuring cost more than the bound?", caption, HEADER, [_cells(one) for one in found])


def _cells(one: Cost) -> tuple[str | Cell, ...]:
    where = one.where if one.strata == 1 else f"{one.where}: all {one.strata}"
    answer = Cell(one.answer, STYLES[one.answer])
    ratio = (f"{one.ratio.value:.4f}", _interval(one.ratio)) if one.ratio else (wording.NONE, wording.NONE)
    return (where, one.outcome.label, one.b, *ratio, answer, str(one.blocks))


def _interval(ratio: Estimate) -> str:
    return "–".join(f"{end:.3f}" for end in wording.outwards(ratio.low, ratio.high, decimals=3))
