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
# Metric -> the load of a side, and what a list of disturbed blocks ends with.
LOADS = {
    OTHERS_CPU: ("used {:.0f} % of the CPU", "share of all CPUs that other programs used"),
    OTHERS_GPU: (
        "used the GPU in {:.0f} % of samples",
        "share of samples in which other programs used the GPU",
    ),
}


def withhold(finding: Finding, reason: str) -> Finding:
    """Return a finding without tests, if there is a reason and its outcome depends on it."""
    if not reason or not finding.row.n_blocks or not depends_on_load(finding.outcome):
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
    text = "times, rates, energy and temperatures have no verdict; measure again on an idle machine"
    return tuple(
        ComparisonWarning(WarningCode.BUSY_MACHINE, f"{reason[:1].upper()}{reason[1:]}: {text}.")
        for reason in loads
    )


def disturbed_blocks(frame: pd.DataFrame) -> tuple[ComparisonWarning, ...]:
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
            line = f"Disturbed blocks, not left out: {listed}{more}; {label}."
            lines.append(ComparisonWarning(WarningCode.DISTURBED_BLOCKS, line))
    return tuple(lines)


def repeated_blocks(excluded: Iterable[Exclusion]) -> tuple[ComparisonWarning, ...]:
    """Return the warning on the block that was measured again because it was unlike the others."""
    blocks = dict.fromkeys(
        exclusion.block for exclusion in excluded if exclusion.code == RepeatCause.ODD_BLOCK
    )
    return tuple(
        ComparisonWarning(
            WarningCode.ODD_BLOCK,
            f"Block {block} was unlike all others and was measured again, by a rule recorded "
            "before the first block. Its first runs are listed under “Left out, and why”.",
        )
        for block in blocks
    )


def unknown_load(frame: pd.DataFrame, outcomes: Iterable[Outcome]) -> tuple[ComparisonWarning, ...]:
    """Return the warning that runs of other tools did not record the machine's load."""
    if not frame["kind"].isna().any() or not any(map(depends_on_load, outcomes)):
        return ()
    if OTHERS_CPU in frame and frame.loc[frame["kind"].isna(), OTHERS_CPU].notna().all():
        return ()
    text = (
        "The load of other programs was not recorded: whether the machine was busy is not known. "
        "It could have moved times."
    )
    return (ComparisonWarning(WarningCode.LOAD_UNKNOWN, text),)


def depends_on_load(outcome: Outcome) -> bool:
    """Return whether a busy machine can change the outcome: times, rates, energy, unknown units.

    What is learned, and what is held in memory, does not depend on how fast it goes.
    """
    return not (outcome.is_learned or outcome.unit == "bytes")


def busy_reason(*sides: pd.DataFrame) -> str:
    """Return why times may not be judged: the median cell of a side was disturbed. Else empty.

    Runs of others record no load and are passed over.
    """
    loads = []
    for metric, (text, _) in LOADS.items():
        percents = []
        for side in sides:
            percent, beyond = _excess(side, metric)
            is_finite = np.isfinite(percent)
            if is_finite.any() and np.median(beyond[is_finite]) > 0:
                percents.append(float(np.median(percent[is_finite])))
        loads += [text.format(max(percents))] if percents else []
    return f"other programs {' and '.join(loads)}" if loads else ""


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
