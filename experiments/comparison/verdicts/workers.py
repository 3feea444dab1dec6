"""What several workers bring over one: their speed-up, and which part of the loss the exchange of gradients is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from experiments.comparison.runs.environment import Value
from experiments.comparison.statistics import estimates
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.findings import Comparison, Finding

THROUGHPUT = "train/examples_per_second"
STEP, ALONE = "train/step_seconds", "train/alone_step_seconds"
WORKERS = "check/workers"


@dataclass(frozen=True)
class Gain:
    """Of a group of workers over one.

    exposed: the share of a step that would be saved if nothing were exchanged, None where too few blocks measured that;
    exposed_seconds: the same in seconds.
    """

    finding: Finding
    workers: int
    exposed: Estimate | None
    exposed_seconds: float | None

    @property
    def stratum(self) -> str:
        return self.finding.row.stratum

    @property
    def level(self) -> str:
        return self.finding.row.b

    @property
    def speedup(self) -> Estimate:
        row = self.finding.row
        assert row.estimate is not None
        return Estimate(row.estimate, row.ci_low or 0.0, math.inf if row.ci_high is None else row.ci_high)

    @property
    def bounded(self) -> bool:
        """Whether the speed-up has an interval."""
        return self.finding.row.ci_low is not None and self.finding.row.ci_high is not None

    @property
    def efficiency(self) -> Estimate:
        """The speed-up over the number of workers."""
        return Estimate(*(one / self.workers for one in (self.speedup.value, self.speedup.low, self.speedup.high)))

    @property
    def overhead(self) -> Estimate:
        """1 − (steps a second of k workers) / (steps a second of one), each with as many images: what efficiency lacks of 1.

        Source: Comparing the training speed of PyTorch and TensorFlow (Huazhong University of Science and Technology, 2022).
        """
        return _missing(self.efficiency)


def gains(comparison: Comparison) -> list[Gain]:
    """Every group of several workers over the baseline of one, stratum by stratum; empty where no run has several workers."""
    workers = {(one.stratum, one.level): int(one.value) for one in last_check(comparison, WORKERS)}
    of_one = [one for one in comparison.findings if one.row.a == comparison.baseline and one.row.estimate is not None]
    by_metric = {(one.row.metric, one.row.stratum, one.row.b): one for one in of_one}
    return [
        _gain(one, count, by_metric)
        for one in of_one
        if one.row.metric == THROUGHPUT and (count := workers.get((one.row.stratum, one.row.b), 1)) > 1
    ]


def last_check(comparison: Comparison, metric: str) -> list[Value]:
    """What the last run of each level in each stratum says of how it was measured."""
    return list({(one.stratum, one.level): one for one in comparison.checks.get(metric, ())}.values())


def _gain(finding: Finding, workers: int, by_metric: Mapping[tuple[str, str, str], Finding]) -> Gain:
    place = (finding.row.stratum, finding.row.b)
    step, alone = (by_metric.get((metric, *place)) for metric in (STEP, ALONE))
    if step is None or alone is None or step.b_value is None or alone.b_value is None:
        return Gain(finding, workers, None, None)
    without = {pair.block: pair.b for pair in alone.pairs}
    blocks = [pair.block for pair in step.pairs if pair.block in without]
    steps = {pair.block: pair.b for pair in step.pairs}
    if len(blocks) < estimates.MINIMUM_VALUES:
        return Gain(finding, workers, None, None)
    logs = estimates.log_ratios([steps[block] for block in blocks], [without[block] for block in blocks])
    return Gain(finding, workers, _missing(estimates.exponential(estimates.mean(logs))), step.b_value - alone.b_value)


def _missing(share: Estimate) -> Estimate:
    """What a share lacks of 1."""
    return Estimate(1 - share.value, 1 - share.high, 1 - share.low)
