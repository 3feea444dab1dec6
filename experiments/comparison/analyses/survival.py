"""Time to an accuracy. Runs whose training ended without it never count as on their way to it.

That is the cumulative incidence (Fine and Gray, 1999): Kaplan and Meier's curve with those runs
kept at risk to the end, which is the share of all runs. With them censored at their end, it would
rise to 1 once the last of the other runs got there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Section
from experiments.comparison.runs.pairing import natural
from experiments.comparison.statistics import estimates, significance
from experiments.comparison.verdicts.decision import MINIMUM_BLOCKS
from experiments.comparison.verdicts.findings import Comparison

CAPTION = (
    "Seconds of training, without validation, until the first epoch with this accuracy ended. The "
    "median is the time by which half of all runs had reached it. A run that ended without it "
    "counts as never reaching it (cumulative incidence), also in the interval and the log-rank "
    "test. The test compares each level with the first one of its accuracy, block by block, "
    "corrected over all rows (Holm). An interval needs six runs, the test six blocks."
)
HEADER = (
    *("accuracy", "level", "runs", "reached it", "median time", "95 % CI"),
    "p, log-rank (Holm)",
)


@dataclass(frozen=True)
class Reached:
    """Times of one level to one accuracy.

    Attributes:
        seconds: until it was reached, or until training ended without.
        reached: whether it was reached, for every run.
        blocks: of every run, in the same order.
    """

    percent: str
    stratum: str
    level: str
    seconds: NDArray[np.float64]
    reached: NDArray[np.bool_]
    blocks: tuple[str, ...]

    @property
    def median(self) -> float:
        """First time by which half of all runs had got there; infinite if less than half do."""
        times = np.sort(self.seconds[self.reached])
        half = math.ceil(len(self.seconds) / 2)
        return float(times[half - 1]) if len(times) >= half else math.inf

    def at_risk(self, end: float) -> NDArray[np.float64]:
        """Return the seconds that each run was on its way.

        Args:
            end: Seconds until which runs that never got there count.

        Returns:
            Seconds of each run, (runs,).
        """
        return np.where(self.reached, self.seconds, end)


def reached(comparison: Comparison) -> list[Reached]:
    """Return every threshold that any run was asked for, in every stratum, level by level."""
    ends = {end.sequence: end for end in comparison.training_ends}
    if not ends:  # how long the runs that never got there were on their way is not recorded
        return []
    results = []
    for percent, values in comparison.times_to_accuracy.items():
        arrived = {arrival.sequence: arrival for arrival in values}
        runs = {**ends, **arrived}.values()
        for stratum in sorted({run.stratum for run in runs}, key=natural):
            for level in comparison.levels:
                inside = [run for run in runs if (run.level, run.stratum) == (level, stratum)]
                if inside:
                    seconds = np.array([run.value for run in inside])
                    in_time = np.array([run.sequence in arrived for run in inside], bool)
                    blocks = tuple(run.block for run in inside)
                    results.append(Reached(percent, stratum, level, seconds, in_time, blocks))
    return results


@dataclass(frozen=True)
class MedianTime:
    """When half of a level's runs had got there, with a 95 % interval.

    The interval inverts tests on the log-log scale of the same curve (Brookmeyer and Crowley,
    1982). Below six runs no interval of a median holds it in 95 %, and no test has fewer a side.

    Attributes:
        seconds: infinite if they never do.
        low: NaN if it is unknown.
        high: infinite if it is unbounded.
        log_rank_p: against the first level of the same threshold and stratum, corrected over all
            thresholds, strata and levels (Holm); None for that one, of few blocks, or if none got
            there.
    """

    of: Reached
    seconds: float
    low: float
    high: float
    log_rank_p: float | None


def median_times(groups: Sequence[Reached], *, tested: bool = True) -> list[MedianTime]:
    """Return median times, in the order of the levels; without p if not tested."""
    from statsmodels.duration.survfunc import SurvfuncRight

    first: dict[tuple[str, str], Reached] = {}
    ps = []
    for group in groups:
        reference = first.setdefault((group.percent, group.stratum), group)
        ps.append(_log_rank(reference, group) if tested and reference is not group else None)
    results = []
    for group, p in zip(groups, significance.holm(ps), strict=True):
        low, high = np.nan, np.inf
        if group.reached.any() and len(group.seconds) >= estimates.minimum_values(0.5):
            at_risk = group.at_risk(float(group.seconds.max()))
            with np.errstate(all="ignore"):  # no width if all or no run is on its way
                low, high = SurvfuncRight(at_risk, group.reached.astype(int)).quantile_ci(0.5)
        results.append(MedianTime(group, group.median, float(low), float(high), p))
    return results


def _log_rank(a: Reached, b: Reached) -> float | None:
    """Return the p of a log-rank test that swaps the runs of a block.

    They share the machine, seed and data. Runs whose training ended without stay at risk (Gray
    1988). The statistic is the sum of log-rank scores of one side, events minus Nelson and Aalen's
    cumulative hazard, so swapping a block turns the sign of its difference.
    """
    both = [block for block in a.blocks if block in b.blocks]
    end = float(max(a.seconds.max(), b.seconds.max()))
    rows = [(side, [side.blocks.index(block) for block in both]) for side in (a, b)]
    status = np.concatenate([side.reached[at] for side, at in rows])
    times = np.concatenate([side.at_risk(end)[at] for side, at in rows])
    if len(both) < MINIMUM_BLOCKS or not status.any():
        return None
    arrivals, events = np.unique(times[status], return_counts=True)
    hazard = np.append(0.0, np.cumsum(events / (times[:, None] >= arrivals).sum(axis=0)))
    scores = status - hazard[np.searchsorted(arrivals, times, side="right")]
    return significance.sign_flip_p(scores[len(both) :] - scores[: len(both)])


def table(evidence: Evidence) -> list[Section]:
    """Return a line for each threshold, stratum and level."""
    groups = reached(evidence.comparison)
    times = median_times(groups, tested=not evidence.comparison.busy)
    return [Section("Time to accuracy", CAPTION, HEADER, list(map(_cells, times)))] if times else []


def _cells(time: MedianTime) -> tuple[str, ...]:
    def seconds(value: float) -> str:
        return f"{value:.3g} s" if math.isfinite(value) else "never"

    group, interval = time.of, wording.NONE
    if math.isfinite(time.low):
        low, high = wording.outwards(time.low, time.high)
        interval = f"{low:.3g} to {seconds(high)}"
    name = f"{group.percent} %" + (f" [{group.stratum}]" if group.stratum else "")
    count = str(len(group.reached))
    arrived = f"{int(group.reached.sum())} of {count}"
    p = wording.p_value(time.log_rank_p)
    return (name, group.level, count, arrived, seconds(time.seconds), interval, p)
