"""Upper bounds on costs: a question to one side, of each stratum and of all of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from experiments.comparison.report import wording
from experiments.comparison.report.sections import Cell, Section
from experiments.comparison.report.tables import number
from experiments.comparison.statistics import estimates
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.findings import Comparison, Finding

HEADER = (
    *("where", "outcome", "harness", number("ratio"), "95 % interval", "at most the bound"),
    "blocks",
)
CAPTION = (
    "Time by a harness over time by the framework’s plain loop. “Shown”: the whole 95 % interval "
    "is at most {bound:g}; “refuted”: all of it is beyond; “not shown”: neither. Each line is a "
    "question of its own, without a correction for their number. “All” is the geometric mean over "
    "the points of a framework, averaged within each block."
)


class Answer(StrEnum):
    """Answer to whether a cost is at most the bound."""

    SHOWN = "shown"
    NOT_SHOWN = "not shown"
    REFUTED = "refuted"


STYLES = {Answer.SHOWN: "alike", Answer.NOT_SHOWN: "open", Answer.REFUTED: "worse"}


@dataclass(frozen=True)
class Cost:
    """Ratio of b to the baseline.

    Attributes:
        where: the stratum, or what several have in common.
        ratio: with its 95 % interval; None below three blocks.
        strata: how many it is the geometric mean of.
        blocks: of each.
        answer: whether the ratio is at most 1 + margin.
    """

    label: str
    where: str
    b: str
    ratio: Estimate | None
    strata: int
    blocks: int
    answer: Answer

    @property
    def interval(self) -> str:
        if self.ratio is None:
            return wording.NONE
        ends = wording.outwards(self.ratio.low, self.ratio.high, decimals=3)
        return "–".join(f"{end:.3f}" for end in ends)

    @property
    def percent(self) -> str:
        """Ratio and interval as shares of the baseline's time."""
        if self.ratio is None:
            return wording.NONE
        bounds = (100 * self.ratio.low, 100 * self.ratio.high)
        low, high = wording.outwards(*bounds, decimals=1)
        return f"{100 * self.ratio.value:.1f} % (95 % CI {low:.1f} to {high:.1f} %)"


def judged(comparison: Comparison, metrics: Sequence[str], margin: float) -> list[Cost]:
    """Return a cost for each stratum, level and metric, then one for each framework's strata."""
    points: dict[tuple[str, str, str], list[Finding]] = {}
    frameworks: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in comparison.findings:
        row = finding.row
        if finding.pairs and row.metric in metrics:
            points[row.stratum, row.b, row.metric] = [finding]
            framework = row.stratum.partition(", ")[0]
            frameworks.setdefault((framework, row.b, row.metric), []).append(finding)
    means = [(key, group) for key, group in frameworks.items() if len(group) > 1]
    costs = [_cost(key[0], group, 1 + margin) for key, group in [*points.items(), *means]]
    return [cost for cost in costs if cost.blocks]  # several campaigns have no block in common


def _cost(where: str, findings: Sequence[Finding], bound: float) -> Cost:
    """Average strata within a block, which shared its time: only blocks are independent."""
    by_block = [
        dict(zip((pair.block for pair in finding.pairs), finding.shifts, strict=True))
        for finding in findings
    ]
    blocks = [block for block in by_block[0] if all(block in shifts for shifts in by_block)]
    means = [float(np.mean([shifts[block] for shifts in by_block])) for block in blocks]
    ratio, answer = None, Answer.NOT_SHOWN
    if len(means) >= estimates.MINIMUM_VALUES:
        ratio = estimates.exponential(estimates.trimmed_mean(means))
        if ratio.high <= bound:
            answer = Answer.SHOWN
        elif ratio.low > bound:
            answer = Answer.REFUTED
    label, b = findings[0].outcome.label, findings[0].row.b
    return Cost(label, where, b, ratio, len(findings), len(blocks), answer)


def sentences(costs: Sequence[Cost]) -> list[str]:
    """Return how many points have which answer, then each mean over a framework's points."""
    points = Counter(cost.answer for cost in costs if cost.strata == 1)
    counts = ", ".join(f"{answer} at {points[answer]}" for answer in Answer)
    total = points.total()
    means = [
        f"{cost.where}, {cost.label}: {cost.b} takes {cost.percent} of the plain loop's time "
        f"over {cost.strata} points; within the bound: {cost.answer}."
        for cost in costs
        if cost.strata > 1 and cost.ratio
    ]
    what = f"{total} point{'' if total == 1 else 's'}"
    return [f"Cost within the bound, of {what}: {counts}.", *means]


def section(costs: Sequence[Cost], margin: float) -> Section:
    """Return the table of costs."""
    rows = []
    for cost in costs:
        where = cost.where if cost.strata == 1 else f"{cost.where}: all {cost.strata}"
        ratio = f"{cost.ratio.value:.4f}" if cost.ratio else wording.NONE
        answer = Cell(cost.answer, STYLES[cost.answer])
        labels = (where, cost.label, cost.b)
        rows.append((*labels, ratio, cost.interval, answer, str(cost.blocks)))
    caption = CAPTION.format(bound=1 + margin)
    return Section("Does measuring cost more than the bound?", caption, HEADER, rows)
