"""Time to an accuracy. Runs whose training ended without it are not dropped: they never count as on their way to it.

That is the cumulative incidence (Fine and Gray, 1999): Kaplan and Meier's curve with those runs kept at risk to the end, which is
the share of all runs. With them censored where they ended, it would rise to 1 where the last run alone got there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.comparison.runs.pairing import natural
from experiments.comparison.statistics import estimates
from experiments.comparison.verdicts.decision import MINIMUM_BLOCKS
from experiments.comparison.verdicts.findings import Comparison


@dataclass(frozen=True)
class Reached:
    """One level's way to one accuracy. seconds: until it was reached, or until training ended without; reached: which of both."""

    percent: str
    stratum: str
    level: str
    seconds: NDArray[np.float64]
    reached: NDArray[np.bool_]

    @property
    def steps(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """When another run got there, ascending, and the share of all runs that had got there from then on."""
        times = np.sort(self.seconds[self.reached])
        return times, np.arange(1, len(times) + 1) / len(self.seconds)

    @property
    def median(self) -> float:
        """The first time by which half of all runs had got there; infinite where less than half ever do."""
        times, shares = self.steps
        return float(times[np.flatnonzero(shares >= 0.5)[0]]) if len(times) and shares[-1] >= 0.5 else math.inf

    def at_risk(self, end: float) -> NDArray[np.float64]:
        """The seconds with which runs are on their way, where those that never got there are until the end of all."""
        return np.where(self.reached, self.seconds, end)


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

    The interval inverts tests on the log-log scale of the same curve (Brookmeyer and Crowley, 1982).
    Below six runs no interval of a median holds it in 95 %, and no test has fewer a side.

    log_rank_p: against the first level of the same threshold and stratum; None for that one, of few
    runs, or where none got there.
    """

    of: Reached
    seconds: float
    low: float
    high: float
    log_rank_p: float | None


def middles(found: Sequence[Reached], *, tested: bool = True) -> list[Middle]:
    """Median times, in the order of the levels. tested: False gives no p."""
    from statsmodels.duration.survfunc import SurvfuncRight

    told = []
    for one in found:
        low, high = np.nan, np.inf
        if one.reached.any() and estimates.earned(0.5, len(one.seconds)):
            curve = SurvfuncRight(one.at_risk(float(one.seconds.max())), one.reached.astype(int))
            with np.errstate(all="ignore"):  # where all or none are on their way, the log-log interval has no width
                low, high = curve.quantile_ci(0.5)
        against = next(other for other in found if (other.percent, other.stratum) == (one.percent, one.stratum))
        p = None if against is one or not tested else _log_rank(against, one)
        told.append(Middle(one, one.median, float(low), float(high), p))
    return told


def _log_rank(a: Reached, b: Reached) -> float | None:
    """With those at risk whose training ended without: nothing else is censored, so that this is Gray's test (1988)."""
    from statsmodels.duration.survfunc import survdiff

    if min(len(a.seconds), len(b.seconds)) < MINIMUM_BLOCKS or not (a.reached.any() or b.reached.any()):
        return None
    groups = np.repeat([0, 1], [len(a.seconds), len(b.seconds)])
    status, end = np.concatenate([a.reached, b.reached]).astype(int), float(max(a.seconds.max(), b.seconds.max()))
    with np.errstate(all="ignore"):
        _, p = survdiff(np.concatenate([a.at_risk(end), b.at_risk(end)]), status, groups)
    return float(p) if np.isfinite(p) else None


def thresholds(found: Sequence[Reached]) -> list[tuple[str, str]]:
    """Accuracy and stratum of every panel."""
    return list(dict.fromkeys((one.percent, one.stratum) for one in found))
