"""Where a training step's time went, by each framework's own profiler: told, not judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from experiments.comparison.runs.pairing import natural
from experiments.comparison.verdicts.findings import Comparison
from experiments.config.outcomes import PROFILED

STEP = f"{PROFILED}step_seconds"
# Of a step, in the order in which they are shown; they add up to it.
PARTS = ("op", "copy", "unrecorded", "dispatch", "python")
GAPS = ("dispatch", "python")


@dataclass(frozen=True)
class Breakdown:
    """The profiled runs of one level in one stratum, each value a mean over them, so that the parts still add up.

    seconds: of a step, by part. input_seconds: waited for a batch, beside the step. ops, launches: of a step; None where they
    cannot be counted. cost: a profiled step over one that is not, None where the steps of any run do not show one.
    """

    stratum: str
    level: str
    n_runs: int
    seconds: Mapping[str, float]
    input_seconds: float
    ops: float | None
    launches: float | None
    cost: float | None

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def gap_share(self) -> float:
        """In which no operator and no kernel ran, as far as the profiler shows, 0…1."""
        return sum(map(self.share, GAPS))

    def share(self, part: str) -> float:
        """Of the step, 0…1."""
        return self.seconds[part] / self.step_seconds


def breakdowns(comparison: Comparison) -> list[Breakdown]:
    """Every stratum that has profiled runs, level by level."""
    runs = comparison.profiled.get(STEP, ())
    strata = sorted({one.stratum for one in runs}, key=natural)
    return [
        _mean(comparison, stratum, level)
        for stratum in strata
        for level in comparison.levels
        if any((one.stratum, one.level) == (stratum, level) for one in runs)
    ]


def _mean(comparison: Comparison, stratum: str, level: str) -> Breakdown:
    def values(name: str) -> list[float]:
        of_runs = comparison.profiled.get(f"{PROFILED}{name}", ())
        return [one.value for one in of_runs if (one.stratum, one.level) == (stratum, level)]

    def mean(name: str) -> float | None:
        found = values(name)
        return float(np.mean(found)) if found else None

    runs, costs = values("step_seconds"), values("profiler_cost_ratio")
    return Breakdown(
        stratum,
        level,
        len(runs),
        {part: mean(f"{part}_seconds") or 0.0 for part in PARTS},
        mean("input_seconds") or 0.0,
        mean("ops_per_step"),
        mean("launches_per_step"),
        float(np.mean(costs)) if len(costs) == len(runs) and min(costs) > 1 else None,
    )
