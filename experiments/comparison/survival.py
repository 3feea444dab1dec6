"""Time to an accuracy, with runs that never get there counted as censored, not dropped (Kaplan and Meier, 1958)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.comparison.findings import Comparison
from experiments.comparison.gates import natural
from experiments.comparison.sections import Section
from experiments.comparison.words import p_value

TOTAL = "train/total_seconds"
HEADER = ("accuracy", "", "runs", "got there", "median time", "95 % interval", "p, log-rank")


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
    totals = comparison.values.get(TOTAL, ())
    for percent, values in comparison.times_to_accuracy.items():
        times = {(one.level, one.stratum, one.block): one.value for one in values}
        for stratum in sorted({one.stratum for one in totals}, key=natural):
            for level in comparison.levels:
                runs = [one for one in totals if (one.level, one.stratum) == (level, stratum)]
                there = [times.get((one.level, one.stratum, one.block)) for one in runs]
                seconds = np.array([one.value if time is None else time for one, time in zip(runs, there, strict=True)])
                arrived = np.array([time is not None for time in there], bool)
                if len(runs):
                    found.append(Reached(percent, stratum, level, seconds, arrived))
    return found


def section(comparison: Comparison) -> Section | None:
    """For the report; None where no time to an accuracy was asked for."""
    from statsmodels.duration.survfunc import SurvfuncRight

    rows = []
    told = reached(comparison)
    for one in told:
        middle, low, high = np.inf, np.nan, np.inf
        if one.reached.any():
            curve = SurvfuncRight(one.seconds, one.reached.astype(int))
            with np.errstate(all="ignore"):  # where all or none are on their way, the log-log interval has no width
                middle, (low, high) = curve.quantile(0.5), curve.quantile_ci(0.5)
        name = f"{one.percent} %" + (f" [{one.stratum}]" if one.stratum else "")
        against = next(other for other in told if (other.percent, other.stratum) == (one.percent, one.stratum))
        p = "—" if against is one else p_value(_log_rank(against, one))
        interval = "—" if not np.isfinite(low) else f"{low:.3g} to {f'{high:.3g} s' if np.isfinite(high) else 'never'}"
        got = f"{int(one.reached.sum())} of {len(one.reached)}"
        rows.append(
            (name, one.level, str(len(one.reached)), got, f"{middle:.3g} s" if np.isfinite(middle) else "never", interval, p)
        )
    caption = (
        "Seconds of training, without validation, until an epoch ended with this accuracy. A run that never got there counts as "
        "censored at its end (Kaplan-Meier); the log-rank test is against the first of each group."
    )
    return Section("Time to accuracy", caption, HEADER, rows) if rows else None


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
