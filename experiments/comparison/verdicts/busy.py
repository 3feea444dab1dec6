"""A neighbour's load is no framework's: what is timed on a busy machine is not settled.

Per side, not over all runs: a neighbour that meets one side alone makes the difference that a verdict would be about. The median
cell, since one disturbed cell of many moves no verdict, and is repeated where it can be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd

from experiments.comparison.runs import environment
from experiments.comparison.runs.pairing import NAMED, Exclusion
from experiments.comparison.statistics.estimates import Floats
from experiments.comparison.verdicts.findings import Finding
from experiments.config.outcomes import Outcome
from experiments.config.settings import OTHERS_LIMIT_PERCENT
from tracking.records import OTHERS_CPU, RepeatCause

LIMIT = "params.others_limit_percent"
# What is learned, and what is held in memory, does not depend on how fast it goes.
UNMOVED = ("nats", "points", "bytes")


def unsettled(finding: Finding, reason: str) -> Finding:
    """Without tests and with its reason, as `reason` gives it, where there is one and the outcome depends on it."""
    if not reason or not finding.row.n_blocks or not depends(finding.outcome):
        return finding
    row = replace(finding.row, p=None, equivalent=None, reason="; ".join(filter(None, (reason, finding.row.reason))))
    return replace(finding, row=row, signed_rank_p=None, permutation_p=None, tost_p=None, busy=reason)


def warning(findings: Iterable[Finding]) -> tuple[str, ...]:
    """What stands first in a report and the terminal, a line for everything that is not settled for this reason."""
    found = dict.fromkeys(one.busy for one in findings if one.busy)
    told = "Times, rates, energy and temperatures have no verdict; measure again when the machine is free."
    return tuple(f"{reason[:1].upper()}{reason[1:]}. {told}" for reason in found)


def flagged(frame: pd.DataFrame) -> tuple[str, ...]:
    """The blocks with a run that others disturbed beyond its limit and that counts all the same: named, never dropped.

    frame: the runs that are used, after every disturbed cell was measured again where it could be.
    """
    if OTHERS_CPU not in frame.columns:
        return ()
    percent, limits = environment.numbers(frame, OTHERS_CPU), _limits(frame)
    beyond = frame.assign(percent=percent)[np.isfinite(percent) & (percent > limits)]
    if beyond.empty:
        return ()
    most: dict[str, float] = {}
    several = frame["stratum"].nunique() > 1
    for stratum, block, used in zip(beyond["stratum"], beyond["block_label"], beyond["percent"], strict=True):
        name = f"{block} [{stratum}]" if several else str(block)
        most[name] = max(used, most.get(name, used))
    told = [f"{name} ({used:.0f} %)" for name, used in most.items()]
    more = f" and {len(told) - NAMED} more" if len(told) > NAMED else ""
    return (f"Disturbed blocks that count all the same: {', '.join(told[:NAMED])}{more}: others used so much of all CPUs.",)


def repeated(excluded: Iterable[Exclusion]) -> tuple[str, ...]:
    """Return the sentence on the block that was measured again because it was unlike the others."""
    blocks = dict.fromkeys(one.block for one in excluded if one.code == RepeatCause.ODD_BLOCK)
    return tuple(
        f"Block {block} was unlike all others and was measured again, by the rule that was recorded before the first block. "
        "Its first runs are listed under “Left out, and why”."
        for block in blocks
    )


def depends(outcome: Outcome) -> bool:
    """Whether a machine that others use can change the outcome: times, rates, energy, temperatures, and what is not known."""
    return not (outcome.unit in UNMOVED or (outcome.kind == "difference" and not outcome.unit))


def reason(*sides: pd.DataFrame) -> str:
    """Why nothing that was timed may be judged, where the median cell of a side was disturbed; else empty."""
    found = [percent for side in sides if (percent := _typical(side)) is not None]
    return f"this machine was busy ({max(found):.0f} % of the CPU by others): not settled" if found else ""


def _typical(side: pd.DataFrame) -> float | None:
    """What others used of all CPUs in the median cell of a side, where that is beyond the limit of the cells; else None.

    Cells that do not say are passed over: runs of others, and of earlier versions.
    """
    if OTHERS_CPU not in side.columns:
        return None
    percent = environment.numbers(side, OTHERS_CPU)
    known = np.isfinite(percent)
    beyond = percent[known] - _limits(side)[known]
    return float(np.median(percent[known])) if len(beyond) and np.median(beyond) > 0 else None


def _limits(frame: pd.DataFrame) -> Floats:
    """The limit that each run was measured with, in percent of all CPUs."""
    limits = environment.numbers(frame, LIMIT) if LIMIT in frame.columns else np.full(len(frame), np.nan)
    return np.where(np.isfinite(limits), limits, OTHERS_LIMIT_PERCENT)
