"""Smallest effects that a row could have shown, and blocks that would settle it."""

from __future__ import annotations

import math
from dataclasses import replace

from experiments.comparison.statistics import power
from experiments.comparison.statistics.sequential import Looks
from experiments.comparison.verdicts import busy
from experiments.comparison.verdicts.decision import ALPHA, OPEN
from experiments.comparison.verdicts.findings import Finding
from experiments.comparison.verdicts.reasons import Family
from experiments.config import durations
from experiments.metrics import outcome

# Estimate and spread of a few blocks predict at most about ten times as many blocks, and no row is
# worth more than a day.
MAX_TIMES, MAX_SECONDS = 10, 24 * 3_600
PREDICTED = f"{100 * power.PREDICTED:.0f} %"


def plan_row(finding: Finding, family: Family) -> Finding:
    """Return a row with its minimums among its family's tests, and a plan if it is open."""
    row = finding.row
    if row.p is None:
        return finding
    n, sd, alpha = row.n_blocks, finding.spread, finding.looks.level(ALPHA)
    row = replace(
        row,
        minimum_in_family=as_effect(
            power.minimum_detectable(sd, n, tests=family.tests, alpha=alpha), row.kind
        ),
        minimum_for_verdict=as_effect(
            power.minimum_for_verdict(row.bound, sd, n, tests=family.tests, alpha=alpha), row.kind
        ),
    )
    if finding.decision not in OPEN:
        return replace(finding, row=row)
    # the tests among which the finding must stand after Holm's correction
    tests = family.tests - family.standing + finding.different
    planned = replace(finding, row=row, plan=_plan(finding, tests))
    return replace(planned, sample_size_text=_text(planned))


def _plan(finding: Finding, tests: int) -> int | None:
    row, looks = finding.row, finding.looks
    mean, sd, n = row.on_test_scale(row.estimate), finding.spread, row.n_blocks
    most = MAX_TIMES * n
    if finding.block_seconds:
        most = min(most, int(MAX_SECONDS / finding.block_seconds))

    def predicted(at: Looks) -> int | None:
        return power.blocks_to_settle(
            mean, sd, n, row.bound, most=most, tests=tests, alpha=at.level(ALPHA)
        )

    last = looks
    for last in looks.ahead():
        blocks, more = predicted(last), last.blocks[-1] - looks.blocks[-1]
        if blocks and blocks <= more <= most:
            return more
    return predicted(last)


def more_blocks(finding: Finding) -> int:
    """Return how many more blocks should bring a verdict; 0 if none or too many."""
    return finding.missing_blocks or payable(finding) or 0


def payable(finding: Finding) -> int | None:
    """Return how many more blocks are predicted to settle it within a day; else None."""
    blocks, seconds = finding.plan, finding.block_seconds or 0.0
    return blocks if blocks and blocks * seconds <= MAX_SECONDS else None


def remedies(finding: Finding) -> tuple[str, ...]:
    """Return what may narrow the interval if no number of blocks is predicted to."""
    if finding.decision not in OPEN or finding.across or payable(finding):
        return ()
    ways = ["longer runs"]
    if busy.depends_on_load(finding.outcome):
        ways.append("an idle machine")
        if not finding.took_turns and not outcome(finding.row.metric).exclusive:
            ways.append("pairing=interleaved")
    return tuple(ways)


def as_effect(shift: float, kind: str) -> float:
    """Return the size of a shift as it is reported.

    Args:
        shift: On the scale of the test, which is logarithmic for ratios.
        kind: `ratio` or `difference`.

    Returns:
        A share (0.03 is 3 %) for a ratio; else in the metric's unit.
    """
    return math.expm1(min(shift, 700.0)) if kind == "ratio" else shift


def _text(finding: Finding) -> str:
    blocks, seconds = payable(finding), finding.block_seconds
    if blocks:
        time = durations.format_duration(blocks * seconds) if seconds else ""
        cost = f" ({time} of machine time)" if time else ""
        return (
            f"at most {blocks:,} more block{'s' * (blocks > 1)} settle it with a predicted "
            f"probability of {PREDICTED}{cost}"
        )
    *others, last = remedies(finding)
    ways = f"{', '.join(others)} or {last}" if others else last
    return f"how many more blocks would settle it cannot be predicted; {ways} may help"
