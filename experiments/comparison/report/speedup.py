"""What more workers bring: the speed-up beside the ideal."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.comparison.report import wording
from experiments.comparison.report.sections import Section
from experiments.comparison.verdicts.findings import Comparison

THROUGHPUT = "train/examples_per_second"
HEADER = ("network", "workers", "speed-up", "95 % interval", "ideal", "efficiency", "95 % interval")


def section(comparison: Comparison, workers: Mapping[str, int], scaling: str) -> Section:
    """A line for each group of workers against one. workers: how many a level has."""
    lines = []
    for one in comparison.findings:
        row = one.row
        if row.metric != THROUGHPUT or row.a != comparison.baseline or row.estimate is None:
            continue
        ideal = workers[row.b]
        low, high = (f"{100 * bound / ideal:.0f} %" if bound is not None else wording.NONE for bound in (row.ci_low, row.ci_high))
        told = (
            f"{row.estimate:.2f}×",
            wording.interval(one),
            f"{ideal}×",
            f"{100 * row.estimate / ideal:.0f} %",
            f"{low} to {high}",
        )
        lines.append((row.stratum, row.b, *told))
    share = "the batch is shared among the workers" if scaling == "strong" else "each worker has a whole batch"
    caption = (
        f"Images a second of all workers together over those of one, {scaling} scaling: {share}. Efficiency is the speed-up over "
        "the ideal, which is the number of workers. Workers are processes of one machine's CPU: they share its memory and caches."
    )
    return Section("Speed-up by workers", caption, HEADER, lines)
