"""Breakdown of a training step's time, by each framework's own profiler: shown, not judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Column, Header, Section
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
    "dispatch": "framework",
    "python": "Python",
}
GAPS = ("dispatch", "python")
NOT_COUNTED = "not counted"
CAPTION = (
    "Steps under each framework’s own profiler, made after everything was measured; none of them "
    "is judged. Means over the profiled runs. A moment of a step belongs to the first column that "
    "goes on then: operators on the CPU or kernels on a GPU; copies; code that runs operators "
    "which the profiler does not show one by one; other code of the framework; the rest is Python. "
    "The last two are the gaps, in which no operator ran. Operators a step: those that compute, "
    "and inside of which no other ran. The wait for input lies between steps. Traces are "
    "artifacts of the runs (profile/)."
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
    runs = {(profile.stratum, profile.level) for profile in comparison.profiled.get(STEP, ())}
    strata = sorted({stratum for stratum, _ in runs}, key=natural)
    return [
        _mean(comparison, stratum, level)
        for stratum in strata
        for level in comparison.levels
        if (stratum, level) in runs
    ]


def _mean(comparison: Comparison, stratum: str, level: str) -> Breakdown:
    def values(name: str) -> list[float]:
        runs = comparison.profiled.get(f"{PROFILED}{name}", ())
        return [run.value for run in runs if (run.stratum, run.level) == (stratum, level)]

    def mean(name: str) -> float | None:
        return float(np.mean(values(name))) if values(name) else None

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
    results, factor = breakdowns(evidence.comparison), evidence.comparison.factor
    several = len({result.stratum for result in results}) > 1
    stratum = (Column("stratum", once=True),) if several else ()
    counts = ("operators a step", "launches a step", "wait for input")
    numbers = map(number, ("step", *PARTS.values(), "gaps", *counts))
    header: Header = (*stratum, factor, *numbers)
    rows = [_cells(result)[not several :] for result in results]
    return [Section("Where a step's time goes", CAPTION, header, rows)] if rows else []


def _cells(breakdown: Breakdown) -> tuple[str, ...]:
    seconds = outcome("train/step_seconds")
    shares = [*map(breakdown.share, PARTS), sum(map(breakdown.share, GAPS))]
    return (
        *(breakdown.stratum, breakdown.level, wording.quantity(breakdown.step_seconds, seconds)),
        *(f"{100 * share:.1f} %" for share in shares),
        NOT_COUNTED if breakdown.ops is None else decimal(breakdown.ops, "{:,.0f}"),
        decimal(breakdown.launches, "{:,.0f}"),
        wording.quantity(breakdown.input_seconds, seconds),
    )


ANALYSIS = Analysis(tables={50: table})
