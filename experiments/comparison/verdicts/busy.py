"""Verdicts of outcomes that were timed on a busy machine: not settled.

Loads are per side: a neighbour that meets only one side makes the difference that a verdict would
be about. The median cell decides, since one disturbed cell of many moves no verdict, and is
repeated if it can be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd

from experiments.comparison.runs import environment
from experiments.comparison.runs.pairing import NAMED, Exclusion
from experiments.comparison.runs.warning import ComparisonWarning, WarningCode
from experiments.comparison.statistics.estimates import Floats
from experiments.comparison.verdicts.decision import Withheld
from experiments.comparison.verdicts.findings import Finding
from experiments.config.settings import NO_OTHERS_LIMIT, OTHERS_LIMIT_PERCENT
from experiments.metrics import Outcome
from tracking.records import OTHERS_CPU, OTHERS_GPU, RepeatCause

LIMIT = "params.others_limit_percent"
# What is learned, and what is held in memory, does not depend on how fast it goes.
UNMOVED = ("nats", "points", "bytes")
# Metric -> the load of a side, and what a list of disturbed blocks ends with.
LOADS = {
    OTHERS_CPU: ("{:.0f} % of the CPU by others", "others used so much of all CPUs"),
    OTHERS_GPU: (
        "others on the GPU in {:.0f} % of samples",
        "others computed on the GPU in so many of the samples",
    ),
}


def unsettled(finding: Finding, reason: str) -> Finding:
    """Return a finding without tests, if there is a reason and its outcome depends on it."""
    if not reason or not finding.row.n_blocks or not depends(finding.outcome):
        return finding
    row = replace(
        finding.row,
        p=None,
        equivalent=None,
        reason="; ".join(filter(None, (reason, finding.row.reason))),
    )
    return replace(
        finding,
        row=row,
        busy=reason,
        withheld=Withheld.BUSY_MACHINE,
    )


def warning(findings: Iterable[Finding]) -> tuple[ComparisonWarning, ...]:
    """Return the first lines of a report, one for each reason."""
    loads = dict.fromkeys(finding.busy for finding in findings if finding.busy)
    text = (
        "Times, rates, energy and temperatures have no verdict; measure again when the machine "
        "is free."
    )
    return tuple(
        ComparisonWarning(WarningCode.BUSY_MACHINE, f"{reason[:1].upper()}{reason[1:]}. {text}")
        for reason in loads
    )


def flagged(frame: pd.DataFrame) -> tuple[ComparisonWarning, ...]:
    """Return warnings with the blocks that others disturbed and that count all the same.

    frame: the runs that are used, after every disturbed cell was measured again where it could be.
    """
    several = frame["stratum"].nunique() > 1
    lines = []
    for metric, (_, label) in LOADS.items():
        percent, beyond = _excess(frame, metric)
        loaded = frame.assign(percent=percent)[beyond > 0]
        groups = loaded.groupby(["stratum", "block_label"], sort=False)["percent"]
        blocks = []
        for (stratum, block), used in groups:
            name = f"{block} [{stratum}]" if several else block
            blocks.append(f"{name} ({used.max():.0f} %)")
        if blocks:
            more = f" and {len(blocks) - NAMED} more" if len(blocks) > NAMED else ""
            listed = ", ".join(blocks[:NAMED])
            line = f"Disturbed blocks that count all the same: {listed}{more}: {label}."
            lines.append(ComparisonWarning(WarningCode.DISTURBED_BLOCKS, line))
    return tuple(lines)


def repeated(excluded: Iterable[Exclusion]) -> tuple[ComparisonWarning, ...]:
    """Return the warning on the block that was measured again because it was unlike the others."""
    blocks = dict.fromkeys(
        exclusion.block for exclusion in excluded if exclusion.code == RepeatCause.ODD_BLOCK
    )
    return tuple(
        ComparisonWarning(
            WarningCode.ODD_BLOCK,
            f"Block {block} was unlike all others and was measured again, by the rule that was "
            "recorded before the first block. "
            "Its first runs are listed under “Left out, and why”.",
        )
        for block in blocks
    )


def depends(outcome: Outcome) -> bool:
    """Return whether a busy machine can change the outcome: times, rates, energy, unknown units."""
    return not (outcome.unit in UNMOVED or (outcome.kind == "difference" and not outcome.unit))


def reason(*sides: pd.DataFrame) -> str:
    """Return why times may not be judged: the median cell of a side was disturbed. Else empty."""
    loads = []
    for metric, (text, _) in LOADS.items():
        percent = [load for side in sides if (load := _typical(side, metric)) is not None]
        loads += [text.format(max(percent))] if percent else []
    return f"this machine was busy ({', '.join(loads)}): not settled" if loads else ""


def _typical(side: pd.DataFrame, metric: str) -> float | None:
    """Return the load of the median cell of a side, if that is beyond its limit; else None.

    Cells that do not say are passed over: runs of others.
    """
    percent, beyond = _excess(side, metric)
    is_known = np.isfinite(percent)
    if not is_known.any() or np.median(beyond[is_known]) <= 0:
        return None
    return float(np.median(percent[is_known]))


def _excess(frame: pd.DataFrame, metric: str) -> tuple[Floats, Floats]:
    """Return each run's load in percent, and its excess over the limit; NaN if unknown.

    Of the CPUs others may use as much as the limit. Of a GPU they may use nothing, unless the
    limit is off.
    """
    percent, limits = (
        environment.numbers(frame.reindex(columns=[name]), name) for name in (metric, LIMIT)
    )
    limits = np.where(np.isfinite(limits), limits, OTHERS_LIMIT_PERCENT)
    if metric == OTHERS_GPU:
        limits = np.where(limits < NO_OTHERS_LIMIT, 0.0, NO_OTHERS_LIMIT)
    return percent, percent - limits
