"""Steady states: which runs came to rest, by level, and which were summarised too early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Cell, Header, Line, Section
from experiments.comparison.report.tables import decimal, number
from experiments.comparison.runs.raw import WINDOWS, RawRun
from experiments.comparison.statistics.steady import KINDS, Steady, classify

RESTLESS = "no steady state"
CAPTION = (
    "The steps of {runs}, without the first. Changepoints split the medians of five steps into "
    "segments. A run is steady from the step from which all segments are within 2 % of the last "
    "one, unless its steps drift. No run is left out for this: a run without a steady state counts "
    "like any other, and is named here."
)
FREE_STEPS = " Where steps ran freely, a window of them stands for a step."


@dataclass(frozen=True)
class RunSteadiness:
    """Classification of a run, and the first steps that its summaries leave out."""

    run: RawRun
    phase: str
    steady: Steady
    warmup_steps: int

    @property
    def measured_too_early(self) -> bool:
        """True if the run's summaries hold steps from before the steady state."""
        return (self.steady.first_steady_step or 0) > max(1, self.warmup_steps)


def of_runs(raw: Sequence[RawRun]) -> tuple[RunSteadiness, ...]:
    """Classify every run's training, or its first phase; by windows if steps ran freely."""
    results = []
    for run in raw:
        names = [*(name for name in (WINDOWS, "train") if name in run.phases), *run.phases]
        if names:
            phase = run.phases[names[0]]
            warmup = int(np.argmin(phase.warmup)) if not phase.warmup.all() else len(phase.warmup)
            # The last window may be short.
            seconds = phase.seconds / (phase.examples if names[0] == WINDOWS else 1)
            results.append(RunSteadiness(run, names[0], classify(seconds), warmup))
    return tuple(results)


def tables(evidence: Evidence) -> list[Section]:
    """Return steady states by level, and the runs without one."""
    results, factor = of_runs(evidence.raw), evidence.comparison.factor
    if not results:
        return []
    counts = ("median first steady step", "steady only after the warm-up")
    header: Header = (factor, *map(number, ("runs read", *KINDS, *counts)))
    rows: list[Line] = []
    for level in evidence.comparison.levels:
        inside = [result for result in results if result.run.level == level]
        kinds = [result.steady.kind for result in inside]
        steps = [result.steady.first_steady_step for result in inside]
        first = [step for step in steps if step is not None]
        early = sum(result.measured_too_early for result in inside)
        rows.append(
            (
                *(level, str(len(inside)), *(str(kinds.count(kind)) for kind in KINDS)),
                decimal(float(np.median(first)) if first else None, "{:.0f}"),
                Cell(str(early), "alarm" if early else ""),
            )
        )
    free = FREE_STEPS if any(result.phase == WINDOWS for result in results) else ""
    total = max(evidence.comparison.n_runs, len(results))
    caption = CAPTION.format(runs=f"{len(results):,} of {total:,} runs") + free
    restless: list[Line] = [
        (
            Cell(result.run.run_id, link=evidence.link(result.run.run_id)),
            *(result.run.level, result.run.stratum, result.run.block),
            f"{result.phase}: {result.steady.reason}",
        )
        for result in results
        if result.steady.kind == RESTLESS
    ]
    hint = f"{len(restless)} of {len(results)} runs without a steady state"
    sections = [Section("Was steady state reached?", caption, header, rows, True, hint)]
    if restless:
        columns = ("run", factor, "stratum", "block", "why")
        title, hint = "Runs without a steady state", wording.counted(len(restless), "run")
        sections.append(Section(title, "", columns, restless, True, hint))
    return sections
