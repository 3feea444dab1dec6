"""Time to an accuracy. Runs whose training ended without it are not dropped: they never count as on their way to it.

That is the cumulative incidence (Fine and Gray, 1999): Kaplan and Meier's curve with those runs kept at risk to the end, which is
the share of all runs. With them censored where they ended, it would rise to 1 where the last run alone got there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.canvas import Colours, Drawing, frame, paneled, plain_ticks
from experiments.comparison.report.sections import Header, Section
from experiments.comparison.runs.pairing import natural
from experiments.comparison.statistics import estimates, significance
from experiments.comparison.verdicts.decision import MINIMUM_BLOCKS
from experiments.comparison.verdicts.findings import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Reached:
    """Times of one level to one accuracy.

    seconds: until it was reached, or until training ended without. reached: which of both. blocks: of every run, in that order.
    """

    percent: str
    stratum: str
    level: str
    seconds: NDArray[np.float64]
    reached: NDArray[np.bool_]
    blocks: tuple[str, ...]

    @property
    def steps(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """When another run got there, ascending, and the share of all runs that had got there from then on."""
        times = np.sort(self.seconds[self.reached])
        return times, np.arange(1, len(times) + 1) / len(self.seconds)

    @property
    def median(self) -> float:
        """The first time by which half of all runs had got there; infinite where less than half ever do."""
        times, shares = self.steps
        return (
            float(times[np.flatnonzero(shares >= 0.5)[0]])
            if len(times) and shares[-1] >= 0.5
            else math.inf
        )

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
                runs = [
                    one for one in everyone.values() if (one.level, one.stratum) == (level, stratum)
                ]
                seconds = np.array([one.value for one in runs])
                there = np.array([one.sequence in arrived for one in runs], bool)
                if runs:
                    blocks = tuple(one.block for one in runs)
                    found.append(Reached(percent, stratum, level, seconds, there, blocks))
    return found


@dataclass(frozen=True)
class Middle:
    """When half of a level's runs had got there, with a 95 % interval: infinite where they never do, NaN where it is unknown.

    The interval inverts tests on the log-log scale of the same curve (Brookmeyer and Crowley, 1982).
    Below six runs no interval of a median holds it in 95 %, and no test has fewer a side.

    log_rank_p: against the first level of the same threshold and stratum, corrected over all thresholds, strata and levels
    (Holm); None for that one, of few blocks, or where none got there.
    """

    of: Reached
    seconds: float
    low: float
    high: float
    log_rank_p: float | None


def middles(found: Sequence[Reached], *, tested: bool = True) -> list[Middle]:
    """Median times, in the order of the levels. tested: False gives no p."""
    from statsmodels.duration.survfunc import SurvfuncRight

    firsts = [
        next(
            other for other in found if (other.percent, other.stratum) == (one.percent, one.stratum)
        )
        for one in found
    ]
    pairs = zip(firsts, found, strict=True)
    ps = significance.holm(
        [_log_rank(first, one) if tested and first is not one else None for first, one in pairs]
    )
    told = []
    for one, p in zip(found, ps, strict=True):
        low, high = np.nan, np.inf
        if one.reached.any() and estimates.earned(0.5, len(one.seconds)):
            curve = SurvfuncRight(one.at_risk(float(one.seconds.max())), one.reached.astype(int))
            with np.errstate(
                all="ignore"
            ):  # where all or none are on their way, the log-log interval has no width
                low, high = curve.quantile_ci(0.5)
        told.append(Middle(one, one.median, float(low), float(high), p))
    return told


def _log_rank(a: Reached, b: Reached) -> float | None:
    """Return the p of a log-rank test that swaps the runs of a block, since they share the machine, seed and data.

    Runs whose training ended without stay at risk (Gray 1988). The statistic is the sum of log-rank scores of one side,
    events minus Nelson and Aalen's cumulative hazard, so swapping a block turns the sign of its difference.
    """
    both = [block for block in a.blocks if block in b.blocks]
    if len(both) < MINIMUM_BLOCKS:
        return None
    end = float(max(a.seconds.max(), b.seconds.max()))
    rows = [[side.blocks.index(block) for block in both] for side in (a, b)]
    status = np.concatenate([side.reached[at] for side, at in zip((a, b), rows, strict=True)])
    times = np.concatenate([side.at_risk(end)[at] for side, at in zip((a, b), rows, strict=True)])
    if not status.any():
        return None
    arrivals, events = np.unique(times[status], return_counts=True)
    hazard = np.append(0.0, np.cumsum(events / (times[:, None] >= arrivals).sum(axis=0)))
    scores = status - hazard[np.searchsorted(arrivals, times, side="right")]
    return significance.sign_flip_p(scores[len(both) :] - scores[: len(both)])


def table(evidence: Evidence) -> list[Section]:
    caption = (
        "Seconds of training, without validation, until an epoch ended with this accuracy. The median is the time by "
        "which half of all runs had got there, as in the figure. A run that ended without stays among those that have "
        "not (cumulative incidence), in the interval and in the log-rank test too, which is against the first of each "
        "group, block by block, and corrected over all rows (Holm). An interval needs six runs, the test six blocks."
    )
    header: Header = (
        "accuracy",
        "",
        "runs",
        "got there",
        "median time",
        "95 % interval",
        "p, log-rank (Holm)",
    )
    rows = [
        _cells(one)
        for one in middles(reached(evidence.comparison), tested=not evidence.comparison.busy)
    ]
    return [Section("Time to accuracy", caption, header, rows)] if rows else []


def _cells(one: Middle) -> tuple[str, ...]:
    def seconds(value: float) -> str:
        return f"{value:.3g} s" if math.isfinite(value) else "never"

    of, known = one.of, math.isfinite(one.low)
    name = f"{of.percent} %" + (f" [{of.stratum}]" if of.stratum else "")
    got = f"{int(of.reached.sum())} of {len(of.reached)}"
    low, high = wording.outwards(one.low, one.high)
    interval = f"{low:.3g} to {seconds(high)}" if known else wording.NONE
    return (
        name,
        of.level,
        str(len(of.reached)),
        got,
        seconds(one.seconds),
        interval,
        wording.p_value(one.log_rank_p),
    )


def figure(evidence: Evidence) -> Drawing | None:
    """Return the share of runs that have reached each accuracy, over time."""
    groups: dict[tuple[str, str], list[Reached]] = {}
    for one in reached(evidence.comparison):
        groups.setdefault((one.percent, one.stratum), []).append(one)
    panels = [
        partial(
            _steps,
            sides=sides,
            colours=evidence.colours,
            title=f"{percent} % accuracy",
            stratum=stratum,
        )
        for (percent, stratum), sides in groups.items()
    ]
    caption = (
        "The share of all runs that have reached an accuracy, by seconds of training without validation. "
        "A tick is a run that ended without: it stays among those that have not reached it. The table’s median is where a line "
        "reaches one half."
    )
    return paneled(
        "times_to_accuracy", "Time to accuracy", caption, evidence.colours, panels, panel_inches=2.1
    )


def _steps(
    axes: Axes, sides: Sequence[Reached], colours: Colours, title: str, stratum: str
) -> None:
    end = max(float(one.seconds.max()) for one in sides)
    for one in sides:
        xs, shares = ([0.0, *values] for values in one.steps)
        axes.step(
            [*xs, end], [*shares, shares[-1]], where="post", color=colours[one.level], linewidth=1.5
        )
        without = one.seconds[~one.reached]
        at = [shares[int(np.searchsorted(xs, second, side="right")) - 1] for second in without]
        axes.plot(without, at, marker="|", markersize=8, linestyle="", color=colours[one.level])
    axes.set_ylim(-0.03, 1.05)
    axes.set_xlabel("time of training, s")
    frame(axes, title, stratum, "share of runs")
    plain_ticks(axes.yaxis, (0, 0.25, 0.5, 0.75, 1))


ANALYSIS = Analysis(tables={40: table}, figures={60: figure})
