"""Verdicts with their reasons; no code reads the text of a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from experiments.comparison.runs.pairing import Mismatch
from experiments.comparison.statistics import significance
from experiments.comparison.statistics.estimates import ROUNDING
from experiments.comparison.verdicts.decision import (
    ALPHA,
    MINIMUM_BLOCKS,
    Decision,
    NoEstimate,
    Withheld,
)
from experiments.comparison.verdicts.findings import (
    DETERMINISTIC,
    EQUIVALENT,
    INCONCLUSIVE,
    NOT_COMPARABLE,
    WITHIN_MARGIN,
    Finding,
    Row,
)

VERDICTS = {
    Decision.NOT_COMPARABLE: NOT_COMPARABLE,
    Decision.IDENTICAL: DETERMINISTIC,
    Decision.CONSTANT: DETERMINISTIC,
    Decision.DIFFERENT: "{way}",
    Decision.WITHIN_MARGIN: WITHIN_MARGIN,
    Decision.EQUIVALENT: EQUIVALENT,
    Decision.SIZE_OPEN: "{way}, size open",
}
WITHIN = "TOST{over_strata}: {which} difference is smaller than the margin"
REASONS = {
    Decision.DIFFERENT: "the interval{over_strata} lies beyond the margin",
    Decision.WITHIN_MARGIN: WITHIN,
    Decision.EQUIVALENT: WITHIN,
    Decision.SIZE_OPEN: "{way}; whether by more than the margin is open",
}
ALWAYS = (
    "always different, by the same {everywhere} and by {size} than the margin: it never varied, so "
    "there is no interval"
)
# Reasons where every block or stratum showed the same.
REASONS_OF_CONSTANTS = {
    Decision.IDENTICAL: "the same on both sides {everywhere}: nothing to test",
    Decision.DIFFERENT: ALWAYS.replace("{size}", "more"),
    Decision.CONSTANT: ALWAYS.replace("{size}", "less"),
}
# An interval this many times as wide as for independent blocks states the cause.
NOTABLE_WIDENING = 1.25
# Reason code -> three to eight words; codes of one value mean the same.
PHRASES: dict[str, str] = {
    Mismatch.NO_RUN: "no usable run on one side",
    Mismatch.SETTINGS: "other settings differ too",
    Mismatch.MACHINES: "runs of several machines",
    Mismatch.VERSIONS: "versions or hardware differ too",
    Mismatch.SEVERAL_RUNS: "several runs of one cell",
    Mismatch.NO_PAIR: "no block holds both sides",
    Mismatch.ORDER: "runs of a block not side by side",
    Mismatch.BATCH_SIZES: "steps of other batch sizes",
    Mismatch.TURNS: "not measurable with pairing=interleaved",
    NoEstimate.NOT_MEASURED: "not measured on one side",
    NoEstimate.NO_RATIO: "zero or negative values",
    NoEstimate.TOO_FEW_STRATA: "too few strata for a summary",
    Withheld.BUSY_MACHINE: "disturbed by other programs",
    Decision.IDENTICAL: "the same value in every block",
    Decision.CONSTANT: "a constant difference below the margin",
    Decision.DIFFERENT: "interval lies beyond the margin",
    Decision.WITHIN_MARGIN: "a difference below the margin",
    Decision.EQUIVALENT: "any difference is below the margin",
    Decision.SIZE_OPEN: "whether beyond the margin is open",
    Decision.OPEN: "the interval is too wide",
}


def phrase(finding: Finding) -> str:
    """Return the reason of a verdict in three to eight words."""
    row = finding.row
    code = finding.mismatch or finding.withheld or row.no_estimate or finding.decision
    if code == Withheld.TOO_FEW_BLOCKS:
        return f"{row.n_blocks} of at least {MINIMUM_BLOCKS} blocks"
    if code is Decision.OPEN and row.p is not None and row.p <= ALPHA:
        return "not significant among all tests (Holm)"
    return PHRASES[code]


def as_sentence(reason: str) -> str:
    """Return a reason as a sentence."""
    return f"{reason[:1].upper()}{reason[1:]}." if reason else ""


@dataclass(frozen=True)
class Family:
    """Findings that share one error rate.

    Attributes:
        name: `primary` or `exploratory`; empty if there is one family.
        tests: how many findings have a test.
        standing: how many are different.
    """

    name: str
    tests: int
    standing: int


def decide(
    findings: Sequence[Finding],
    add_sample_size: Callable[[Finding, Family], Finding] = lambda finding, _: finding,
) -> list[Finding]:
    """Return findings with verdict and reason, after Holm's correction within each family.

    A finding that comes with a reason has no verdict for that reason.

    Args:
        add_sample_size: adds the end of a reason.
    """
    names = dict.fromkeys(finding.row.family for finding in findings)
    decided_findings: dict[int, Finding] = {}
    for name in names:
        places = [at for at, finding in enumerate(findings) if finding.row.family == name]
        adjusted = significance.holm([findings[at].row.p for at in places])
        tests, standing = (
            sum(p is not None and p <= limit for p in adjusted) for limit in (1.0, ALPHA)
        )
        family = Family(name if len(names) > 1 else "", tests, standing)
        for at, p in zip(places, adjusted, strict=True):
            finding = replace(findings[at], row=replace(findings[at].row, p_holm=p))
            finding = add_sample_size(replace(finding, decision=_decision(finding)), family)
            decided_findings[at] = _with_text(finding, family)
    return [decided_findings[at] for at in range(len(findings))]


def _decision(finding: Finding) -> Decision:
    row = finding.row
    if row.estimate is None:
        return Decision.TOO_FEW if row.n_blocks else Decision.NOT_COMPARABLE
    if finding.withheld:
        return Decision.TOO_FEW
    if row.p is None:
        return _constant(finding)
    low, high = row.on_test_scale(row.ci_low, -math.inf), row.on_test_scale(row.ci_high, math.inf)
    if finding.different and (low > row.bound or high < -row.bound):
        return Decision.DIFFERENT
    if row.equivalent:
        return Decision.WITHIN_MARGIN if finding.different else Decision.EQUIVALENT
    return Decision.SIZE_OPEN if finding.different else Decision.OPEN


def _constant(finding: Finding) -> Decision:
    """Decide on a shift that never varied: its size decides."""
    row, rounding = finding.row, ROUNDING
    if row.kind == "difference" and finding.a_value is not None:
        rounding *= abs(finding.a_value)
    shift = abs(row.on_test_scale(row.estimate))
    if shift <= rounding:
        return Decision.IDENTICAL
    return Decision.DIFFERENT if shift > row.bound + rounding else Decision.CONSTANT


def _with_text(finding: Finding, family: Family) -> Finding:
    row, decision = finding.row, finding.decision
    verdict = VERDICTS.get(decision, INCONCLUSIVE).format(way=finding.way)
    texts = (row.reason or _reason(finding, family), finding.sample_size_text, widening(row))
    reason = "; ".join(filter(None, texts))
    return replace(finding, row=replace(row, verdict=verdict, reason=reason, decision=decision))


def _reason(finding: Finding, family: Family) -> str:
    row, across = finding.row, finding.across
    reasons = REASONS_OF_CONSTANTS if finding.never_varied else REASONS
    if text := reasons.get(finding.decision):
        return text.format(
            way=finding.way,
            over_strata=" over strata" if across else "",
            which="the mean" if across else "any",
            everywhere=f"in all {len(across.names)} strata"
            if across
            else f"in all {row.n_blocks} blocks",
        )
    if row.p is not None and row.p <= ALPHA:
        tests = "summaries" if across else "tests"
        among = " ".join(filter(None, (str(family.tests), family.name, tests)))
        return f"p = {row.p:.2g} is not significant among {among} (Holm)"
    where = "over the strata " if across else ""
    return f"{where}neither a difference nor equivalence is shown"


def widening(row: Row) -> str:
    """Return what autocorrelation cost the interval; empty if not notable."""
    if (row.widening or 0.0) < NOTABLE_WIDENING:
        return ""
    possible = "" if (row.autocorrelation_weight or 0.0) >= 0.5 else "possible "
    return (
        f"{possible}autocorrelation of blocks (about {row.autocorrelation:.1f}) makes the interval "
        f"{row.widening:.1f} times as wide as for independent blocks"
    )
