"""Time to an accuracy, with runs that never get there counted as censored, not dropped (Kaplan and Meier, 1958)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.comparison.runs.pairing import natural
from experiments.comparison.verdicts.findings import Comparison


@dataclass(frozen=True)
class Reached:
    """One level's way to one accuracy. seconds: until it was reached, or until training ended without; reached: which of both."""

    percent: str
    stratum: str
    level: str
    seconds: NDArray[np.float64]
    reached: NDArray[np.bool_]


def reached(comparison: Comparison) -> list[Reached]:
    """Every threshold that any run was asked for, in every stratum, level by level."""
    found = []
    ends = {one.sequence: one for one in comparison.training_ends}
    if not ends:  # nobody knows for how long those who never got there were on their way
        return []
    for percent, values in comparison.times_to_accuracy.items():
        arrived = {one.sequence: one for one in values}
        everyone = {**ends, **arrived}
        for stratum in sorted({one.stratum for one in everyone.values()}, key=natural):
            for level in comparison.levels:
                runs = [one for one in everyone.values() if (one.level, one.stratum) == (level, stratum)]
                seconds = np.array([one.value for one in runs])
                there = np.array([one.sequence in arrived for one in runs], bool)
                if runs:
                    found.append(Reached(percent, stratum, level, seconds, there))
    return found


@dataclass(frozen=True)
class Middle:
    """When half of a level's runs had got there, with a 95 % interval: infinite where they never do, NaN where it is unknown.

    log_rank_p: against the first level of the same threshold and stratum; None for that one, or where none got there.
    """

    of: Reached
    seconds: float
    low: float
    high: float
    log_rank_p: float | None


def middles(found: Sequence[Reached], *, tested: bool = True) -> list[Middle]:
    """Median times by Kaplan and Meier, in the order of the levels. tested: False gives no p."""
    from statsmodels.duration.survfunc import SurvfuncRight

    told = []
    for one in found:
        middle, low, high = np.inf, np.nan, np.inf
        if one.reached.any():
            curve = SurvfuncRight(one.seconds, one.reached.astype(int))
            with np.errstate(all="ignore"):  # where all or none are on their way, the log-log interval has no width
                middle, (low, high) = curve.quantile(0.5), curve.quantile_ci(0.5)
        against = next(other for other in found if (other.percent, other.stratum) == (one.percent, one.stratum))
        p = None if against is one or not tested else _log_rank(against, one)
        told.append(Middle(one, float(middle), float(low), float(high), p))
    return told


def _log_rank(a: Reached, b: Reached) -> float | None:
    from statsmodels.duration.survfunc import survdiff

    if not (a.reached.any() or b.reached.any()):
        return None
    groups = np.repeat([0, 1], [len(a.seconds), len(b.seconds)])
    status = np.concatenate([a.reached, b.reached]).astype(int)
    with np.errstate(all="ignore"):
        _, p = survdiff(np.concatenate([a.seconds, b.seconds]), status, groups)
    return float(p) if np.isfinite(p) else None


def thresholds(found: Sequence[Reached]) -> list[tuple[str, str]]:
    """Accuracy and stratum of every panel."""
    return list(dict.fromkeys((one.percent, one.stratum) for one in found))
