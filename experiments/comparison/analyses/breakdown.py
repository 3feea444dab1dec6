"""Breakdown of a training step's time, by each framework's own profiler: shown, not judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Header, Line, Section
from experiments.comparison.report.tables import decimal, number
from experiments.comparison.runs.pairing import natural
from experiments.comparison.verdicts.findings import Comparison
from experiments.metrics import PROFILED, outcome

STEP = f"{PROFILED}step_seconds"
# Parts of a step in the order of columns; they add up to it.
PARTS = {
    "op": "operators or kernels",
    "copy": "copies",
    "unrecorded": "unrecorded",
    "dispatch": "framework code",
    "python": "Python",
}
NOT_COUNTED = "not counted"
CAPTION = (
    "Steps under each framework’s own profiler, made after all measurements; none of them is "
    "judged. Means over the profiled runs. Each moment of a step counts for the first column that "
    "applies: operators on the CPU or kernels on a GPU; copies; unrecorded, code that runs "
    "operators which the profiler does not list one by one; framework code, the other code of the "
    "framework; the rest is Python. In the last two no operator runs. “Operators a step” counts "
    "those that compute and contain no other. The wait for input is between steps. The profiler "
    "makes some parts longer. Traces are artifacts of the runs (profile/)."
)


@dataclass(frozen=True)
class Breakdown:
    """Means over the profiled runs of one level in one stratum; the parts add up to the step.

    Attributes:
        seconds: of a step, by part.
        input_seconds: waited for a batch, in addition to the step.
        ops: operators of a step; None if they cannot be counted.
        launches: kernel launches of a step; None if they cannot be counted.
    """

    stratum: str
    level: str
    seconds: Mapping[str, float]
    input_seconds: float
    ops: float | None
    launches: float | None

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())

    def share(self, part: str) -> float:
        """Return a part's share of the step, 0 to 1."""
        return self.seconds[part] / self.step_seconds


def breakdowns(comparison: Comparison) -> list[Breakdown]:
    """Return every stratum that has profiled runs, level by level."""
    runs = {(profile.stratum, profile.level) for profile in comparison.unjudged.get(STEP, ())}
    strata = sorted({stratum for stratum, _ in runs}, key=natural)
    return [
        _mean(comparison, stratum, level)
        for stratum in strata
        for level in comparison.levels
        if (stratum, level) in runs
    ]


def _mean(comparison: Comparison, stratum: str, level: str) -> Breakdown:
    def mean(name: str) -> float | None:
        runs = comparison.unjudged.get(f"{PROFILED}{name}", ())
        values = [run.value for run in runs if (run.stratum, run.level) == (stratum, level)]
        return float(np.mean(values)) if values else None

    return Breakdown(
        stratum,
        level,
        {part: mean(f"{part}_seconds") or 0.0 for part in PARTS},
        mean("input_seconds") or 0.0,
        mean("ops_per_step"),
        mean("launches_per_step"),
    )


def table(evidence: Evidence) -> list[Section]:
    """Return the parts of a step in the profiled runs."""
    counts = ("operators a step", "launches a step", "wait for input")
    numbers = map(number, ("step", *PARTS.values(), *counts))
    header: Header = ("stratum", evidence.comparison.factor, *numbers)
    seconds, rows = outcome("train/step_seconds"), list[Line]()
    for result in breakdowns(evidence.comparison):
        shares = (f"{100 * result.share(part):.1f} %" for part in PARTS)
        step = wording.quantity(result.step_seconds, seconds)
        rows.append(
            (
                *(result.stratum, result.level, step, *shares),
                NOT_COUNTED if result.ops is None else decimal(result.ops, "{:,.0f}"),
                decimal(result.launches, "{:,.0f}"),
                wording.quantity(result.input_seconds, seconds),
            )
        )
    return [Section("Where a step's time goes", CAPTION, header, rows)] if rows else []
