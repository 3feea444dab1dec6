"""Whether something costs no more than a bound: a question to one side, of each stratum and of all of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from experiments.comparison.analyses import Analysis
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Cell, Column, Section
from experiments.comparison.statistics import estimates
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.metrics import Outcome

HEADER = (
    "where",
    "outcome",
    "harness",
    Column("ratio", numeric=True),
    "95 % interval",
    "at most the bound",
    "blocks",
)


class Answer(StrEnum):
    """Whether a cost is at most the bound."""

    SHOWN = "shown"
    NOT_SHOWN = "not shown"
    REFUTED = "refuted"


STYLES = {Answer.SHOWN: "alike", Answer.NOT_SHOWN: "open", Answer.REFUTED: "worse"}


@dataclass(frozen=True)
class Cost:
    """The ratio of b to the baseline with its 95 % interval; None below three blocks.

    strata: how many it is the geometric mean of; blocks: of each.
    where: the stratum, or what several have in common. answer: whether the ratio is at most 1 + margin.
    """

    outcome: Outcome
    where: str
    b: str
    ratio: Estimate | None
    strata: int
    blocks: int
    answer: Answer


def judged(comparison: Comparison, metrics: Sequence[str], margin: float) -> list[Cost]:
    """A cost a stratum, level and metric, then one of all strata that begin alike (a framework's), block by block."""
    here = [
        one
        for one in comparison.findings
        if one.pairs and not one.across and one.row.metric in metrics
    ]
    found = [_cost(one, one.row.stratum, [one], margin) for one in here]
    together: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in here:
        together.setdefault(
            (finding.row.stratum.partition(", ")[0], finding.row.b, finding.row.metric), []
        ).append(finding)
    found += [
        _cost(several[0], first, several, margin)
        for (first, _, _), several in together.items()
        if len(several) > 1
    ]
    return [
        one for one in found if one.blocks
    ]  # strata of several campaigns have no block in common


def _cost(example: Finding, where: str, findings: Sequence[Finding], margin: float) -> Cost:
    """Strata of one block shared its time, so they are averaged in it; blocks alone are independent."""
    by_block = [
        dict(zip((pair.block for pair in one.pairs), one.shifts, strict=True)) for one in findings
    ]
    blocks = [block for block in by_block[0] if all(block in one for one in by_block)]
    means = [float(np.mean([one[block] for one in by_block])) for block in blocks]
    ratio = (
        estimates.exponential(estimates.mean(means))
        if len(means) >= estimates.MINIMUM_VALUES
        else None
    )
    return Cost(
        example.outcome,
        where,
        example.row.b,
        ratio,
        len(findings),
        len(blocks),
        _answer(ratio, 1 + margin),
    )


def _answer(ratio: Estimate | None, bound: float) -> Answer:
    if ratio is None:
        return Answer.NOT_SHOWN
    if ratio.high <= bound:
        return Answer.SHOWN
    return Answer.REFUTED if ratio.low > bound else Answer.NOT_SHOWN


def sentences(found: Sequence[Cost]) -> list[str]:
    """How many points were answered which way, then each mean over all points of a framework."""
    points = Counter(one.answer for one in found if one.strata == 1)
    counts = ", ".join(f"{points[answer]} {answer}" for answer in Answer)
    told = [f"Cost at most the bound: {counts}."]
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
    return Section(
        "Does measuring cost more than the bound?", caption, HEADER, [_cells(one) for one in found]
    )


def _cells(one: Cost) -> tuple[str | Cell, ...]:
    where = one.where if one.strata == 1 else f"{one.where}: all {one.strata}"
    answer = Cell(one.answer, STYLES[one.answer])
    ratio = (
        (f"{one.ratio.value:.4f}", _interval(one.ratio))
        if one.ratio
        else (wording.NONE, wording.NONE)
    )
    return (where, one.outcome.label, one.b, *ratio, answer, str(one.blocks))


def _interval(ratio: Estimate) -> str:
    return "–".join(f"{end:.3f}" for end in wording.outwards(ratio.low, ratio.high, decimals=3))


ANALYSIS = Analysis()  # its study adds the table
