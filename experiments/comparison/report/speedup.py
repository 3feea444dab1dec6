"""What more workers bring: the speed-up beside the ideal."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.comparison.report import wording
from experiments.comparison.report.sections import Section
from experiments.comparison.verdicts.findings import Comparison, Finding

THROUGHPUT = "train/examples_per_second"
STEP, ALONE = "train/step_seconds", "train/alone_step_seconds"
HEADER = ("network", "workers", "speed-up", "95 % interval", "ideal", "efficiency", "95 % interval", "exchange")


def section(comparison: Comparison, workers: Mapping[str, int], scaling: str) -> Section:
    """A line for each group of workers against one. workers: how many a level has."""
    found = [one for one in comparison.findings if one.row.metric == THROUGHPUT and one.row.a == comparison.baseline]
    share = "the batch is shared among the workers" if scaling == "strong" else "each worker has a whole batch"
    caption = (
        f"Images a second of all workers together over those of one, {scaling} scaling: {share}. Efficiency is the speed-up over "
        "the ideal, which is the number of workers. Exchange: by how much the median step is longer than one after which no "
        "gradients are exchanged, as the first worker sees it; waiting for a slower worker is part of it. Workers on one "
        "machine share its memory and caches."
    )
    lines = [_line(comparison, one, workers[one.row.b]) for one in found if one.row.estimate is not None]
    return Section("Speed-up by workers", caption, HEADER, lines)


def _line(comparison: Comparison, one: Finding, ideal: int) -> tuple[str, ...]:
    row = one.row
    assert row.estimate is not None
    efficiency, interval = f"{100 * row.estimate / ideal:.0f} %", wording.NONE
    if row.ci_low is not None and row.ci_high is not None:
        interval = f"{100 * row.ci_low / ideal:.0f} % to {100 * row.ci_high / ideal:.0f} %"
    speedup = f"{row.estimate:.2f}×"
    exchange = _exchange(comparison, row.stratum, row.b)
    return row.stratum, row.b, speedup, wording.interval(one), f"{ideal}×", efficiency, interval, exchange


def _exchange(comparison: Comparison, stratum: str, level: str) -> str:
    """What computing does not hide of it, in milliseconds a step."""
    baseline = comparison.baseline
    here = [one for one in comparison.findings if (one.row.stratum, one.row.a, one.row.b) == (stratum, baseline, level)]
    seconds = {one.row.metric: one.b_value for one in here}
    step, alone = seconds.get(STEP), seconds.get(ALONE)
    return wording.NONE if step is None or alone is None else f"{1_000 * (step - alone):.2f} ms"
