"""Whether something costs no more than a bound: a question to one side, of each stratum and of all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.comparison.statistics import estimates
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.config.outcomes import Outcome

SHOWN, NOT_SHOWN, REFUTED = "shown", "not shown", "refuted"


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
    answer: str


def judged(comparison: Comparison, metrics: Sequence[str], margin: float) -> list[Cost]:
    """A cost a stratum, level and metric, then one of all strata that begin alike (a framework's), block by block."""
    here = [one for one in comparison.findings if one.pairs and not one.across and one.row.metric in metrics]
    found = [_cost(one, one.row.stratum, [one], margin) for one in here]
    together: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in here:
        together.setdefault((finding.row.stratum.partition(", ")[0], finding.row.b, finding.row.metric), []).append(finding)
    found += [_cost(several[0], first, several, margin) for (first, _, _), several in together.items() if len(several) > 1]
    return [one for one in found if one.blocks]  # strata of several campaigns have no block in common


def _cost(example: Finding, where: str, findings: Sequence[Finding], margin: float) -> Cost:
    """Strata of one block shared its time, so they are averaged in it; blocks alone are independent."""
    by_block = [dict(zip((pair.block for pair in one.pairs), one.shifts, strict=True)) for one in findings]
    blocks = [block for block in by_block[0] if all(block in one for one in by_block)]
    means = [float(np.mean([one[block] for one in by_block])) for block in blocks]
    ratio = estimates.exponential(estimates.mean(means)) if len(means) >= estimates.MINIMUM_VALUES else None
    return Cost(example.outcome, where, example.row.b, ratio, len(findings), len(blocks), _answer(ratio, 1 + margin))


def _answer(ratio: Estimate | None, bound: float) -> str:
    if ratio is None:
        return NOT_SHOWN
    if ratio.high <= bound:
        return SHOWN
    return REFUTED if ratio.low > bound else NOT_SHOWN
