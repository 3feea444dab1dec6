"""Verdicts under the load of other programs: a condition if both sides meet it, else withheld.

In random blocks a load that comes and goes meets both sides alike, and widens their interval. A
load of one side is in the difference, and threads without a CPU each wait for one another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from experiments.comparison.runs import environment
from experiments.comparison.runs.pairing import Exclusion
from experiments.comparison.runs.warning import ComparisonWarning, WarningCode
from experiments.comparison.statistics import estimates
from experiments.comparison.statistics.estimates import MINIMUM_VALUES, Floats
from experiments.comparison.verdicts.decision import Withheld
from experiments.comparison.verdicts.findings import Finding
from experiments.config.settings import OTHERS_LIMIT_PERCENT
from experiments.metrics import UNJUDGED, Outcome
from tracking.records import OTHERS_CPU, OTHERS_GPU, OVERSUBSCRIBED, RepeatCause

LIMIT = "params.others_limit_percent"
# Metric -> what other programs did in a run.
LOADS = {
    OTHERS_CPU: "used {:.0f} % of the CPU",
    OTHERS_GPU: "used the GPU in {:.0f} % of samples",
}
# Units with a time, an energy, a temperature or a share of a resource.
OF_SPEED = re.compile(r"(^|\W)([mµun]?s|sec\w*|min\w*|h|hours?|fps|M?Hz|[km]?[JW]h?|°C|%)(\W|$)")


def withhold(finding: Finding, reason: str) -> Finding:
    """Return a finding without tests, if there is a reason and its outcome depends on it.

    A value that is the same in all runs has no test, and no load has changed it.
    """
    if not reason or finding.row.p is None or not depends_on_load(finding.outcome):
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


def warning(findings: Iterable[Finding]) -> Iterator[ComparisonWarning]:
    """Yield the first lines of a report, one for each reason."""
    for reason in dict.fromkeys(finding.busy for finding in findings if finding.busy):
        yield ComparisonWarning(
            WarningCode.BUSY_MACHINE,
            f"{reason[:1].upper()}{reason[1:]}: times, rates, energy and temperatures have no "
            "verdict; measure again on an idle machine, or with a larger --others_limit_percent.",
        )


def load_warnings(frame: pd.DataFrame) -> Iterator[ComparisonWarning]:
    """Yield the load under which the runs were measured, if it was above the limit in any."""
    for metric, text in LOADS.items():
        percent = pd.Series(_percents(frame, metric), frame.index)
        if (most := percent.max()) > _limit(frame):
            block = frame["block_label"].iloc[percent.argmax()]
            yield ComparisonWarning(
                WarningCode.BACKGROUND_LOAD,
                f"Measured while other programs {text.format(percent.median())} in the median run, "
                f"{most:.0f} % at most (block {block}).",
            )


def repeated_blocks(excluded: Iterable[Exclusion]) -> Iterator[ComparisonWarning]:
    """Yield a warning on each block that was measured again because it was unlike the others."""
    odd = (exclusion for exclusion in excluded if exclusion.code == RepeatCause.ODD_BLOCK)
    for block in dict.fromkeys(exclusion.block for exclusion in odd):
        yield ComparisonWarning(
            WarningCode.ODD_BLOCK,
            f"Block {block} was unlike all others and was measured again, by a rule recorded "
            "before the first block. Its first runs are listed under “Left out, and why”.",
        )


def unknown_load(frame: pd.DataFrame, outcomes: Iterable[Outcome]) -> Iterator[ComparisonWarning]:
    """Yield the warning that runs of other tools did not record the machine's load."""
    others = frame[frame["kind"].isna()].reindex(columns=[OTHERS_CPU])
    if others[OTHERS_CPU].isna().any() and any(map(depends_on_load, outcomes)):
        yield ComparisonWarning(
            WarningCode.LOAD_UNKNOWN,
            "The load of other programs was not recorded: whether the machine was busy is not "
            "known. It could have moved times.",
        )


def depends_on_load(outcome: Outcome) -> bool:
    """Return whether a busy machine can change the outcome: times, rates, energy, temperatures.

    What is learned, counted, checked or held in memory does not depend on how fast it goes. A
    metric without a unit may be a time.
    """
    if outcome.is_learned:
        return False
    if outcome.unit:
        return OF_SPEED.search(outcome.unit) is not None
    return not outcome.metric.startswith(UNJUDGED)


def busy_reason(first: pd.DataFrame, second: pd.DataFrame) -> str:
    """Return why times may not be judged; empty if they may.

    The load of the sides differs by more than the limit, beyond chance; or threads and other
    programs needed more than all CPUs, in the median run of a side. Runs that record no load are
    passed over.

    Args:
        first: Runs of a level.
        second: Runs of the other level, row by row from the same blocks.
    """
    sides, reasons = (first, second), []
    limit = min(map(_limit, sides))
    for metric, text in LOADS.items():
        loads = np.array([_percents(side, metric) for side in sides])
        a, b = loads[:, np.isfinite(loads).all(axis=0)]
        if len(a) < MINIMUM_VALUES:
            continue
        shift = estimates.trimmed_mean(b - a)
        if abs(shift.value) > limit and shift.low * shift.high > 0:
            reasons.append(
                f"other programs {text.format(b.mean())} in the runs of {second['level'].iloc[0]}, "
                f"{a.mean():.0f} % in those of {first['level'].iloc[0]}"
            )
    needed = [pd.Series(_percents(side, OVERSUBSCRIBED)).median() for side in sides]
    if (most := np.nanmax([*needed, 0.0])) > limit:
        reasons.append(f"threads and other programs needed {100 + most:.0f} % of the CPU")
    return "; ".join(reasons)


def _percents(frame: pd.DataFrame, metric: str) -> Floats:
    return environment.numbers(frame.reindex(columns=[metric]), metric)


def _limit(frame: pd.DataFrame) -> float:
    """Return the smallest limit of the runs."""
    limits = _percents(frame, LIMIT)
    recorded = limits[np.isfinite(limits)]
    return float(recorded.min()) if len(recorded) else OTHERS_LIMIT_PERCENT
