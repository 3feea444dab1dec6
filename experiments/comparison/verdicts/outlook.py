"""What a row could have shown, and how many more blocks would settle it: said beside the verdict, never part of it."""

from __future__ import annotations

import math
from dataclasses import replace

from experiments.comparison.statistics import power
from experiments.comparison.statistics.power import Plan
from experiments.comparison.verdicts.decision import ALPHA, MINIMUM_BLOCKS, Decision
from experiments.comparison.verdicts.findings import Finding
from experiments.comparison.verdicts.reasons import Family
from experiments.config import durations

OPEN = (Decision.OPEN, Decision.SIZE_OPEN)


def of_row(finding: Finding, family: Family) -> Finding:
    """With the least effects that this row could have shown among its family's tests, and a plan where it is open."""
    row = finding.row
    if row.p is None:
        return finding
    shifts = finding.shifts
    n, sd, alpha = len(shifts), float(shifts.std(ddof=1)), finding.looks.level(ALPHA)
    row = replace(
        row,
        minimum_in_family=as_effect(power.minimum_detectable(sd, n, tests=family.tests, alpha=alpha), row.kind),
        minimum_for_verdict=as_effect(power.minimum_for_verdict(row.bound, sd, n, tests=family.tests, alpha=alpha), row.kind),
    )
    if finding.decision not in OPEN:
        return replace(finding, row=row)
    plan = _plan(finding, family.left_beside(finding))
    return replace(finding, row=row, plan=plan, outlook=_told(plan, finding.block_seconds))


def _plan(finding: Finding, tests: int) -> Plan:
    """The blocks to the first look that should settle it, or, of a campaign without looks, to a verdict."""
    shifts, looks = finding.shifts, finding.looks
    mean, sd, n = float(shifts.mean()), float(shifts.std(ddof=1)), len(shifts)
    last = looks
    for last in looks.ahead():
        plan = power.blocks_to_settle(mean, sd, n, finding.row.bound, tests=tests, alpha=last.level(ALPHA))
        more = last.blocks[-1] - looks.blocks[-1]
        if plan.blocks and plan.blocks <= more:
            return replace(plan, blocks=more, most=plan.most and max(more, plan.most))
    return power.blocks_to_settle(mean, sd, n, finding.row.bound, tests=tests, alpha=last.level(ALPHA))


def more_blocks(finding: Finding) -> int:
    """How many more should bring a verdict; 0 where there is one, or no payable number does."""
    if finding.decision is Decision.TOO_FEW and not finding.busy:
        return max(0, MINIMUM_BLOCKS - finding.row.n_blocks)
    return finding.plan.blocks or 0 if finding.plan else 0


def narrower(finding: Finding) -> float | None:
    """The share of its width at which the interval would settle it if its middle stayed; None where it is narrow enough."""
    row = finding.row
    low, high = row.on_test_scale(row.ci_low, -math.inf), row.on_test_scale(row.ci_high, math.inf)
    share = abs(abs(row.on_test_scale(row.estimate)) - row.bound) / ((high - low) / 2) if high > low else math.inf
    return share if share < 1 else None


def as_effect(shift: float, kind: str) -> float:
    """A shift on the scale of the test as a share (0.03 is 3 %) or in the metric's unit."""
    return math.expm1(min(shift, 700.0)) if kind == "ratio" else shift


def _told(plan: Plan, block_seconds: float | None) -> str:
    if plan.blocks is None:
        return "no payable number of blocks would settle it: what was seen lies too near the margin"
    blocks = f"about {plan.blocks:,} more block{'s' if plan.blocks > 1 else ''} would settle it if the truth is what was seen"
    most = "more than can be paid" if plan.most is None else f"{plan.most:,}"
    spread = f"{plan.fewest:,} to {most}, as the spread is known"
    cost = f"; {durations.told(plan.blocks * block_seconds)} of machine time" if block_seconds else ""
    return f"{blocks} ({spread}{cost})"
