"""Random-effects summaries over the strata of a comparison; no run is pooled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from experiments.comparison.runs import order
from experiments.comparison.runs.pairing import NAMED
from experiments.comparison.statistics import significance
from experiments.comparison.statistics.sequential import strictest
from experiments.comparison.verdicts import reasons
from experiments.comparison.verdicts.decision import ALPHA, MINIMUM_BLOCKS, NoEstimate, Withheld
from experiments.comparison.verdicts.findings import AcrossStrata, Finding, Row

# Two strata have one difference between them: it tells nothing of how far a third may lie.
MINIMUM_STRATA = 3
# Fields that a summary has from its rows.
SHARED = ("metric", "factor", "a", "b", "kind", "margin", "family")


def summarise(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return a summary of every outcome and pair of levels that two strata estimate.

    Holm's correction spans the summaries, a second reading of the rows, which do not pay for them.
    """
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.row.metric, finding.row.a, finding.row.b), []).append(finding)
    pooled = [summary for group in groups.values() if (summary := _summary(group))]
    return tuple(reasons.decide(pooled))


def _summary(group: Sequence[Finding]) -> Finding | None:
    usable = [finding for finding in group if finding.row.estimate is not None]
    if len(usable) < 2:
        return None
    first, ratio = group[0].row, group[0].row.kind == "ratio"
    row = Row(
        **{name: getattr(first, name) for name in SHARED},
        n_blocks=min(finding.row.n_blocks for finding in usable),
    )
    names = tuple(finding.row.stratum for finding in usable)
    left_out = tuple(finding.row.stratum for finding in group if finding not in usable)
    without = f"without {', '.join(left_out)}: no estimate with a variance there"
    blank = Finding(row, group[0].outcome, sample_size_text=without if left_out else "")
    if len(usable) < MINIMUM_STRATA:
        # their distance is chance, and so is any interval
        few = f"{len(usable)} strata only; a verdict across strata needs {MINIMUM_STRATA}"
        reason = _busy(usable) or few
        row = replace(row, reason=reason, no_estimate=NoEstimate.TOO_FEW_STRATA)
        return replace(blank, row=row, across=AcrossStrata(names, left_out))
    values = [finding.row.on_test_scale(finding.row.estimate) for finding in usable]
    variances = [finding.spread**2 / finding.row.n_blocks for finding in usable]
    looks = strictest(finding.looks for finding in usable)
    combined = significance.random_effects(values, variances, looks.confidence)
    tost = combined.tost_p(row.bound)
    is_equivalent = abs(combined.value) < row.bound
    if tost is not None:
        is_equivalent = bool(looks.one_sided(tost) < ALPHA)
    withheld, reason = _withheld(usable)
    together = replace(
        row,
        estimate=math.exp(combined.value) if ratio else combined.value,
        ci_low=_back(combined.low, ratio),
        ci_high=_back(combined.high, ratio),
        p=None if combined.p is None else float(looks.p(combined.p)),
        equivalent=is_equivalent,
        reason=reason,
    )
    across = AcrossStrata(
        names,
        left_out,
        prediction_low=_back(combined.prediction_low, ratio),
        prediction_high=_back(combined.prediction_high, ratio),
        tau=combined.tau,
        i_squared_percent=combined.i_squared_percent,
        q_p=combined.q_p,
    )
    return replace(blank, row=together, across=across, looks=looks, withheld=withheld)


def _back(value: float | None, ratio: bool) -> float | None:
    if value is None or not ratio:
        return value
    with np.errstate(over="ignore", under="ignore"):
        factor = float(np.exp(value))
    return factor if 0 < factor < math.inf else None


def _busy(usable: Sequence[Finding]) -> str:
    disturbed = [finding.row.stratum for finding in usable if finding.busy]
    names = ", ".join(disturbed[:NAMED])
    return f"other programs used the machine in {names}" if disturbed else ""


def _withheld(usable: Sequence[Finding]) -> tuple[Withheld | None, str]:
    if disturbed := _busy(usable):
        return Withheld.BUSY_MACHINE, disturbed
    orders = [finding.order for finding in usable if finding.order]
    is_learned = usable[0].outcome.is_learned
    if orders and not is_learned and (refused := order.combine(orders).refused):
        return Withheld.ORDER, refused
    few = [
        f"{finding.row.stratum} has {finding.row.n_blocks}"
        for finding in usable
        if finding.row.n_blocks < MINIMUM_BLOCKS
    ]
    if not few:
        return None, ""
    where = f": {', '.join(few)}" if len(few) <= NAMED else f" in {len(few)} strata"
    return (
        Withheld.TOO_FEW_BLOCKS,
        f"too few blocks{where}; a verdict needs {MINIMUM_BLOCKS} in every stratum",
    )
