"""What the strata of a comparison say together: each keeps its own estimate, and a random-effects summary stands beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from experiments.comparison import significance
from experiments.comparison.estimates import ROUNDING, mean
from experiments.comparison.findings import (
    ALPHA,
    DETERMINISTIC,
    EQUIVALENT,
    INCONCLUSIVE,
    LEAST_BLOCKS,
    WITHIN_MARGIN,
    Finding,
    Summary,
)
from experiments.comparison.gates import NAMED
from experiments.comparison.significance import Combined

# Two strata have one difference between them: it tells nothing of how far a third may lie.
LEAST_STRATA = 3


def summaries(findings: Sequence[Finding]) -> tuple[Summary, ...]:
    """A summary of every outcome and pair of levels that at least two strata estimate, in the order of the findings.

    Holm's correction spans the summaries: they are a second reading of the report's rows, and no row pays for them.
    """
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.row.metric, finding.row.a, finding.row.b), []).append(finding)
    found = [one for group in groups.values() if (one := _summary(group))]
    adjusted = significance.holm([one.p for one in found])
    tests = sum(p is not None for p in adjusted)
    return tuple(_decided(replace(one, p_holm=p), tests) for one, p in zip(found, adjusted, strict=True))


def _summary(group: Sequence[Finding]) -> Summary | None:
    """Everything but the verdict. None where fewer than two strata have an estimate with a variance."""
    usable = [finding for finding in group if finding.row.estimate is not None and len(finding.pairs) > 1]
    if len(usable) < 2:
        return None
    combined = significance.random_effects([mean(one.shifts).value for one in usable], [_variance(one) for one in usable])
    row, ratio = group[0].row, group[0].row.kind == "ratio"
    tost = combined.tost_p(row.bound)
    return Summary(
        metric=row.metric,
        outcome=group[0].outcome,
        factor=row.factor,
        a=row.a,
        b=row.b,
        kind=row.kind,
        n_strata=combined.n,
        n_blocks=min(one.row.n_blocks for one in usable),
        strata=tuple(one.row.stratum for one in usable),
        left_out=tuple(one.row.stratum for one in group if one not in usable),
        estimate=math.exp(combined.value) if ratio else combined.value,
        low=_back(combined.low, ratio),
        high=_back(combined.high, ratio),
        prediction_low=_back(combined.prediction_low, ratio),
        prediction_high=_back(combined.prediction_high, ratio),
        tau=combined.tau,
        i_squared_percent=combined.i_squared_percent,
        q_p=combined.q_p,
        p=combined.p,
        p_holm=None,
        margin=row.margin,
        equivalent=abs(combined.value) < row.bound if tost is None else tost < ALPHA,
        verdict=INCONCLUSIVE,
        reason=_cannot(usable, combined),
    )


def _variance(finding: Finding) -> float:
    """Of a stratum's estimate; 0 where all its blocks agree but for rounding."""
    shifts = finding.shifts
    return 0.0 if finding.row.minimum_detectable == 0 else float(shifts.var(ddof=1)) / len(shifts)


def _back(value: float | None, ratio: bool) -> float | None:
    """From logarithms to a ratio; None where that is unbounded."""
    if value is None or not ratio:
        return value
    with np.errstate(over="ignore", under="ignore"):
        found = float(np.exp(value))
    return found if 0 < found < math.inf else None


def _cannot(usable: Sequence[Finding], combined: Combined) -> str:
    """Why there can be no verdict; empty where there can."""
    if combined.n < LEAST_STRATA:
        return f"{combined.n} strata only; a verdict across strata needs {LEAST_STRATA}"
    few = [f"{one.row.stratum} has {one.row.n_blocks}" for one in usable if one.row.n_blocks < LEAST_BLOCKS]
    where = f": {', '.join(few)}" if len(few) <= NAMED else f" in {len(few)} strata"
    return f"too few blocks{where}; a verdict needs {LEAST_BLOCKS} in every stratum" if few else ""


def _decided(summary: Summary, tests: int) -> Summary:
    verdict, reason = (INCONCLUSIVE, summary.reason) if summary.reason else _decide(summary, tests)
    if summary.left_out:
        reason = f"{reason}; without {', '.join(summary.left_out)}: no estimate with a variance there"
    return replace(summary, verdict=verdict, reason=reason)


def _decide(summary: Summary, tests: int) -> tuple[str, str]:
    ratio = summary.kind == "ratio"
    nothing, beyond = (1.0, 1 + summary.margin) if ratio else (0.0, summary.margin)
    above = summary.estimate > nothing
    if summary.p is None:
        same = abs(summary.estimate - nothing) <= ROUNDING
        return (
            DETERMINISTIC,
            f"{'identical' if same else 'the same difference'} in all {summary.n_strata} strata: nothing to test",
        )
    low = -math.inf if summary.low is None else summary.low
    high = math.inf if summary.high is None else summary.high
    if summary.different and (low > beyond or high < (1 / beyond if ratio else -beyond)):
        return summary.outcome.words[above], "the interval over strata lies beyond the margin"
    if summary.equivalent:
        return (
            WITHIN_MARGIN if summary.different else EQUIVALENT
        ), "TOST over strata: the mean difference is smaller than the margin"
    return INCONCLUSIVE, _why_open(summary, summary.outcome.words[above], tests)


def _why_open(summary: Summary, word: str, tests: int) -> str:
    if summary.different:
        return f"{word}, but whether by more than the margin is open"
    if summary.p is not None and summary.p <= ALPHA:
        return f"p = {summary.p:.2g} alone does not stand among the {tests} summaries of this report (Holm)"
    return "over the strata neither a difference nor equivalence is shown"
