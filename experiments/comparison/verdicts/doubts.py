"""What speaks against a verdict that its test allows: blocks that are not independent, a tail on one side, one block alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from experiments.comparison.statistics import guards
from experiments.comparison.statistics.estimates import Estimate, Floats
from experiments.comparison.statistics.sequential import FIXED, Looks
from experiments.comparison.statistics.significance import ALPHA
from experiments.comparison.verdicts.decision import Decision

if TYPE_CHECKING:
    from experiments.comparison.verdicts.findings import Finding, Row

# From here on a test on ranks has the power to be a second opinion, and leaving a block out leaves enough of them.
BLOCKS_FOR_SECOND_OPINIONS = 10
NAMED = 4


@dataclass(frozen=True)
class Doubt:
    """A condition of the test that the shifts do not meet, and the interval, on the scale of the test, that does not need it.

    kind: `autocorrelation`, `skewness`, or, of a summary, `strata`. said: it stands beside the verdict.
    """

    kind: str
    statistic: float
    p: float
    interval: Estimate
    said: bool = False

    @property
    def excludes_zero(self) -> bool:
        return self.interval.low > 0 or self.interval.high < 0

    def within(self, bound: float) -> bool:
        return -bound < self.interval.low and self.interval.high < bound


def of_shifts(shifts: Floats, second: Estimate, confidence: float = 0.95) -> tuple[Doubt, ...]:
    """What may be wrong with a t test of these shifts, which are in the order of time; second: their Hodges-Lehmann estimate.

    confidence: of the intervals.
    """
    found = []
    lag = guards.lag_one(shifts)
    if lag.p < ALPHA:
        wider = hull(second, guards.correlated_mean(shifts, lag.statistic, confidence))
        found.append(Doubt("autocorrelation", lag.statistic, lag.p, wider))
    skew = guards.skewness(shifts)
    if skew and skew.p < ALPHA:
        found.append(Doubt("skewness", skew.statistic, skew.p, hull(second, guards.skewed_mean(shifts, confidence))))
    return tuple(found)


def hull(first: Estimate, *others: Estimate) -> Estimate:
    """The first estimate with an interval that holds all intervals."""
    every = (first, *others)
    return Estimate(first.value, min(one.low for one in every), max(one.high for one in every))


def weighed(finding: Finding, decision: Decision, bare: Decision) -> Finding:
    """The finding with its decision, with its doubts marked that are to be said, and with what is said beside the verdict.

    bare: what would be decided without doubts; a doubt about what nobody claims is not said.
    """
    claimed = bare.is_verdict or bare is Decision.SIZE_OPEN
    said = tuple(replace(one, said=claimed) for one in finding.doubts)
    in_words = [_inherited(finding, decision is bare) if one.kind == "strata" else _words(one, finding, bare) for one in said]
    remarks = in_words if claimed else []
    if finding.across is None and finding.row.n_blocks >= BLOCKS_FOR_SECOND_OPINIONS:
        remarks += _second_opinion(finding)
        remarks += _hinges(finding, bare)
    return replace(finding, decision=decision, doubts=said, remarks=tuple(remarks))


def _words(doubt: Doubt, finding: Finding, bare: Decision) -> str:
    n, agrees = finding.row.n_blocks, _agrees(doubt, finding, bare)
    if doubt.kind == "autocorrelation":
        told = f"blocks resemble the block before (autocorrelation {doubt.statistic:.2f}, p = {doubt.p:.2g}"
        power = f"of one of {guards.TYPICAL_CORRELATION:g} this check finds {100 * guards.power_of_lag_one(n):.0f} %"
    else:
        told = f"the differences have a long tail on one side (skewness {doubt.statistic:+.1f}, p = {doubt.p:.2g}"
        power = f"of one of 2, as exponential noise has it, this check finds {100 * guards.power_of_skewness(n):.0f} %"
    interval = shown(doubt.interval, finding.row)
    return f"doubt: {told}; {power}); the wider interval {interval} {'agrees' if agrees else 'does not agree'}"


def _agrees(doubt: Doubt, finding: Finding, bare: Decision) -> bool:
    bound = finding.row.bound
    if bare is Decision.DIFFERENT:
        return doubt.interval.low > bound or doubt.interval.high < -bound
    if bare is Decision.SIZE_OPEN:
        return doubt.excludes_zero
    return doubt.within(bound) and (bare is Decision.EQUIVALENT or doubt.excludes_zero)


def _inherited(summary: Finding, agrees: bool) -> str:
    names = summary.across.doubted if summary.across else ()
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    told = f"doubt: {'; '.join(names[:NAMED])}{more} in doubt (see there)"
    return f"{told}; with their wider intervals it {'stands' if agrees else 'does not stand'}"


def shown(interval: Estimate, row: Row) -> str:
    """An interval on the scale of the test as people read it: of a ratio below 1 its inverse, as the effect beside it."""
    if row.kind == "ratio":
        bounds = (-interval.high, -interval.low) if (row.estimate or 1.0) < 1 else (interval.low, interval.high)
        low, high = (math.exp(min(bound, 700.0)) for bound in bounds)
        return f"{low:.3g}–{high:.3g}"
    return f"{interval.low:+.3g} to {interval.high:+.3g}".replace("-", "−")


def _second_opinion(finding: Finding) -> list[str]:
    """The Hodges-Lehmann estimate, where one of the two intervals lies beyond the margin and the other does not."""
    row, second = finding.row, finding.hodges_lehmann
    if second is None or row.ci_low is None or row.ci_high is None:
        return []
    other = Estimate(*(row.on_test_scale(one) for one in (second.value, second.low, second.high)))
    t = _side(row.on_test_scale(row.ci_low), row.on_test_scale(row.ci_high), row.bound)
    if t == _side(other.low, other.high, row.bound) or not math.isfinite(other.high - other.low):
        return []
    middle = shown(Estimate(other.value, other.value, other.value), row).partition("–")[0].partition(" to")[0]
    return [f"the Hodges-Lehmann estimate, which a single block moves little, says otherwise: {middle} ({shown(other, row)})"]


def _side(low: float, high: float, bound: float) -> int:
    """1 or -1 for an interval beyond the margin, else 0."""
    return int(low > bound) - int(high < -bound)


WITHIN = 2


def _hinges(finding: Finding, bare: Decision) -> list[str]:
    """The blocks without any one of which the test would give another verdict."""
    row = finding.row
    if row.p is None or row.p_holm is None:
        return []
    without = _without_each(finding.shifts, row.bound, row.p_holm / row.p, finding.looks)
    now = int(finding.way == finding.outcome.words[1]) * 2 - 1 if bare is Decision.DIFFERENT else 0
    now = WITHIN if bare in (Decision.WITHIN_MARGIN, Decision.EQUIVALENT) else now
    others = np.flatnonzero(without != now)
    if not len(others):
        return []
    names = [finding.pairs[at].block for at in others]
    if len(names) == 1:
        return [f"this verdict hangs on block {names[0]}: without it {_would_be(int(without[others[0]]), finding)}"]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return [f"this verdict hangs on single blocks: {', '.join(names[:NAMED])}{more}; without any one of them it is another"]


def _without_each(shifts: Floats, bound: float, correction: float, looks: Looks = FIXED) -> NDArray[np.int_]:
    """What the test says without each block: 1 or -1 beyond the margin, `WITHIN` it, or 0."""
    left = guards.leave_one_out(shifts)
    half = left.half(looks.confidence)
    different = looks.p(left.p()) * correction <= ALPHA
    beyond = (left.means - half > bound).astype(int) - (left.means + half < -bound).astype(int)
    return np.where(different & (beyond != 0), beyond, np.where(looks.one_sided(left.p_within(bound)) < ALPHA, WITHIN, 0))


def _would_be(code: int, finding: Finding) -> str:
    if code == WITHIN:
        return "any difference is within the margin"
    return finding.outcome.words[code > 0] if code else "there is none"


def widened(findings: Sequence[Finding]) -> list[Estimate | None]:
    """The widest interval of every finding that is in doubt; None where it is not."""
    return [
        hull(said[0].interval, *(one.interval for one in said)) if (said := [d for d in one.doubts if d.said]) else None
        for one in findings
    ]
