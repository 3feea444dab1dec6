"""Where the steps' time went, where runs were profiled."""

from __future__ import annotations

import pandas as pd

from experiments.comparison.findings import Comparison
from experiments.comparison.sections import Section
from experiments.comparison.surroundings import medians

PARTS = {"compute": "computing", "copy": "copying", "launch": "launching and waiting", "input": "input"}


def section(comparison: Comparison, runs: pd.DataFrame) -> Section | None:
    """Medians over the profiled runs of each level; None where none was."""
    found = {part: medians(runs, factor=comparison.factor, metric=f"profile/{part}_percent") for part in PARTS}
    levels = [level for level in comparison.levels if level in found["compute"]]
    rows = [(level, *(f"{found[part][level]:.1f} %" for part in PARTS)) for level in levels]
    caption = (
        "Shares of a training step's time, by each framework's own profiler, after everything was measured; median over runs. "
        "Operators on the CPU, kernels on a GPU; launching and waiting is the rest: Python, dispatch, idle cores. "
        "The traces are artifacts of the runs (profile/), readable in TensorBoard."
    )
    return Section("Where a step's time goes", caption, (comparison.factor, *PARTS.values()), rows) if rows else None
