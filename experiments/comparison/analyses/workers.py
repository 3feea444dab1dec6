"""Gains of several workers over one: speed-up, cost of the exchange, and the proof before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from experiments.comparison.report import wording
from experiments.comparison.report.sections import Header, Line, Section
from experiments.comparison.report.tables import number
from experiments.comparison.runs.environment import Value
from experiments.comparison.statistics import estimates
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.findings import Comparison, Finding

THROUGHPUT = "train/examples_per_second"
STEP, WITHOUT_EXCHANGE = "train/step_seconds", "train/alone_step_seconds"
WORKERS = "check/workers"
ERROR, LIMIT = "check/weights_error", "check/weights_error_limit"
SHARES = {
    "strong": "the batch is shared among the workers",
    "weak": "each worker has a whole batch",
}
Groups = Mapping[str, tuple[int, str]]
SPEEDUPS = (
    "Speed-up: images per second of all workers together over those of one, {scaling} scaling: "
    "{share}. Efficiency: the speed-up over the number of workers. Overhead: the published "
    "formula, 1 − (steps per second of k workers) / (steps per second of one), of equal batches "
    "per worker; with a shared batch images take the place of steps. Exposed: by how much the "
    "median step is longer than a step without gradient exchange, measured in the same cell by the "
    "first worker; it includes the wait for a slower worker. Other losses: the rest, 1 − (1 − "
    "overhead) / (1 − exposed); workers share a machine, its memory and caches, or have fewer "
    "images each. Below zero: nothing is lost."
)
PROOFS = (
    "Before anything is measured, a group of workers and one worker with all of their images train "
    "a few steps in float64. Then their weights are compared. With exact averaging the difference "
    "is a share of the largest weight. With compression it is a share of the distance by which "
    "training moved the weights (L2 norms), and the limit allows for what the compression itself "
    "changes. A group above its limit is not measured."
)


@dataclass(frozen=True)
class Gain:
    """Gain of a group of workers over one.

    Attributes:
        overhead: what the efficiency lacks of 1. Source: Comparing the training speed of PyTorch
            and TensorFlow (Huazhong University of Science and Technology, 2022).
        exposed: the share of a step that would be saved if nothing were exchanged; None if too
            few blocks measured that.
        exposed_seconds: the same in seconds.
    """

    finding: Finding
    workers: int
    speedup: Estimate
    exposed: Estimate | None = None
    exposed_seconds: float | None = None

    @property
    def efficiency(self) -> Estimate:
        speedup = self.speedup
        return Estimate(*(x / self.workers for x in (speedup.value, speedup.low, speedup.high)))

    @property
    def overhead(self) -> Estimate:
        return _missing(self.efficiency)


def gains(comparison: Comparison) -> list[Gain]:
    """Return every group of several workers over the baseline of one, stratum by stratum."""
    workers = {
        (value.stratum, value.level): int(value.value) for value in last_check(comparison, WORKERS)
    }
    over_baseline = {
        (finding.row.metric, finding.row.stratum, finding.row.b): finding
        for finding in comparison.findings
        if finding.row.a == comparison.baseline and finding.row.estimate is not None
    }
    results = []
    for (metric, stratum, level), finding in over_baseline.items():
        count = workers.get((stratum, level), 1)
        if metric == THROUGHPUT and count > 1:
            row = finding.row
            high = math.inf if row.ci_high is None else row.ci_high
            speedup = Estimate(row.estimate or 0.0, row.ci_low or 0.0, high)
            step, without = (
                over_baseline.get((name, stratum, level)) for name in (STEP, WITHOUT_EXCHANGE)
            )
            exposed = _exposed(step, without) if step and without else (None, None)
            results.append(Gain(finding, count, speedup, *exposed))
    return results


def last_check(comparison: Comparison, metric: str) -> list[Value]:
    """Return how the last run of each level in each stratum was measured."""
    values = comparison.unjudged.get(metric, ())
    return list({(value.stratum, value.level): value for value in values}.values())


def _exposed(step: Finding, without: Finding) -> tuple[Estimate | None, float | None]:
    with_exchange, others = (
        {pair.block: pair.b for pair in finding.pairs} for finding in (step, without)
    )
    blocks = [block for block in with_exchange if block in others]
    if len(blocks) < estimates.MINIMUM_VALUES or step.b_value is None or without.b_value is None:
        return None, None
    sides = ([side[block] for block in blocks] for side in (with_exchange, others))
    ratio = estimates.exponential(estimates.trimmed_mean(estimates.log_ratios(*sides)))
    return _missing(ratio), step.b_value - without.b_value


def _missing(share: Estimate) -> Estimate:
    return Estimate(1 - share.value, 1 - share.high, 1 - share.low)


def sections(comparison: Comparison, groups: Groups, scaling: str) -> list[Section]:
    """Return speed-up and overhead, if any group has an estimate, and the proof of each.

    Args:
        groups: level -> workers and compression.
        scaling: `strong` or `weak`.
    """
    tables: list[Section] = []
    if speedups := [_speedup_cells(gain) for gain in gains(comparison)]:
        header: Header = (
            *("network", "workers", number("speed-up"), "95 % interval", number("efficiency")),
            *(number("overhead"), "95 % interval", number("exposed, ms a step")),
            *(number("exposed"), "95 % interval", number("other losses")),
        )
        caption = SPEEDUPS.format(scaling=scaling, share=SHARES[scaling])
        tables.append(Section("Speed-up by workers", caption, header, speedups))
    limits = {(value.stratum, value.level): value.value for value in last_check(comparison, LIMIT)}
    proofs: list[Line] = []
    for check in last_check(comparison, ERROR):
        errors = (check.value, limits[check.stratum, check.level])
        compression = groups[check.level][1]
        proofs.append((check.stratum, check.level, compression, *(f"{x:.1e}" for x in errors)))
    if proofs:
        header = ("network", "workers", "compression", "weights differ by", "at most")
        tables.append(Section("Workers against one, before measuring", PROOFS, header, proofs))
    return tables


def _speedup_cells(gain: Gain) -> tuple[str, ...]:
    row, overhead, exposed = gain.finding.row, gain.overhead, gain.exposed
    cells = (wording.NONE,) * 4
    if exposed and gain.exposed_seconds is not None:
        rest = 1 - (1 - overhead.value) / (1 - exposed.value)
        seconds = f"{1_000 * gain.exposed_seconds:.2f} ms"
        cells = (seconds, _percent(exposed.value), _interval(exposed), _percent(rest))
    return (
        *(row.stratum, row.b, f"{gain.speedup.value:.2f}×", wording.interval(gain.finding)),
        *(_percent(gain.efficiency.value), _percent(overhead.value), _interval(overhead), *cells),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %".replace("-", wording.MINUS)


def _interval(share: Estimate) -> str:
    if not abs(share.low) < 10 or not abs(share.high) < 10:  # of one block: unbounded
        return wording.NONE
    return " to ".join(map(_percent, wording.outwards(share.low, share.high, decimals=3)))
