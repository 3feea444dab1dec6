"""Steady states: which runs came to rest, by level, and which were summarised too early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report.sections import Cell, Header, Line, Section
from experiments.comparison.report.tables import decimal, number, under
from experiments.comparison.runs.raw import WINDOWS, RawRun
from experiments.comparison.statistics.steady import KINDS, Steady, classify

RESTLESS = "no steady state"
CAPTION = (
    "The steps of {runs}: changepoints of the medians of five, the first step apart; a run is "
    "steady from where no stretch differs by more than 2 % from its last, unless its steps drift. "
    "Nothing is left out for it: a run without a steady state counts like any other, and is named "
    "here."
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
        """Return whether the run's summaries hold steps from before the steady state."""
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
    comparison, results = evidence.comparison, of_runs(evidence.raw)
    if not results:
        return []
    by_level = {
        level: [result for result in results if result.run.level == level]
        for level in comparison.levels
    }
    runs = f"{len(results):,} of {comparison.n_runs:,} runs"
    if len(results) >= comparison.n_runs:
        runs = f"all {len(results):,} runs"
    free = FREE_STEPS if any(result.phase == WINDOWS for result in results) else ""
    counts = (
        "steady from step, median",
        "steps left out as warm-up",
        "runs summarised before they were steady",
    )
    header: Header = (comparison.factor, *map(number, ("runs read", *KINDS, *counts)))
    rows = [(level, *_cells(of_level)) for level, of_level in by_level.items() if of_level]
    title, caption = "Was steady state reached?", CAPTION.format(runs=runs) + free
    sections = [Section(title, caption, header, rows)]
    restless: list[Line] = []
    for result in (result for of_level in by_level.values() for result in of_level):
        if result.steady.kind == RESTLESS:
            run, reason = result.run, f"{result.phase}: {result.steady.reason}"
            name = Cell(run.run_id, link=evidence.link(run.run_id))
            restless.append((name, run.level, run.stratum, run.block, reason))
    if restless:
        columns: Header = ("run", comparison.factor, under(""), "block", "why")
        sections.append(Section("Runs without a steady state", "", columns, restless, level=3))
    return sections


def _cells(runs: Sequence[RunSteadiness]) -> tuple[str | Cell, ...]:
    def count(number: int, *, alarming: bool) -> Cell:
        return Cell(str(number or "·"), "alarm" if alarming and number else "")

    kinds = [result.steady.kind for result in runs]
    steps = [result.steady.first_steady_step for result in runs]
    first = [step for step in steps if step is not None]
    return (
        str(len(runs)),
        *(count(kinds.count(kind), alarming=kind == RESTLESS) for kind in KINDS),
        decimal(float(np.median(first)) if first else None, "{:.0f}"),
        ", ".join(map(str, sorted({result.warmup_steps for result in runs}))),
        count(sum(result.measured_too_early for result in runs), alarming=True),
    )


ANALYSIS = Analysis(tables={120: tables})
