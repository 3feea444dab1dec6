"""After how many steps compiling has paid: what the first step costs more, over what every later one saves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.findings import Comparison

FIRST, LATER = "train/first_step_seconds", "train/step_seconds"


@dataclass(frozen=True)
class BreakEven:
    """first, later: seconds of the first step and of a later one, eager and compiled; medians over the blocks.

    steps: the median over the blocks, infinite where compiling never pays; with the interval of order statistics that holds the
    median in at least 95 %. None below six blocks, which bound no median.
    """

    stratum: str
    eager: str
    compiled: str
    first: tuple[float, float]
    later: tuple[float, float]
    steps: Estimate | None
    blocks: int


def judged(comparison: Comparison, pairs: Mapping[str, Sequence[str]]) -> list[BreakEven]:
    """pairs: what is run as it comes -> what compiles the same. One for every pair and stratum that have a block in common."""
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    for metric in (FIRST, LATER):
        for one in comparison.values.get(metric, ()):
            values.setdefault((one.stratum, one.level, metric), {})[one.block] = one.value
    strata = dict.fromkeys(stratum for stratum, _, _ in values)
    every = [(stratum, eager, one) for stratum in strata for eager, compiled in pairs.items() for one in compiled]
    return [found for stratum, eager, one in every if (found := _judged(values, stratum, eager, one))]


def _judged(
    values: Mapping[tuple[str, str, str], Mapping[str, float]], stratum: str, eager: str, compiled: str
) -> BreakEven | None:
    keys = [(stratum, level, metric) for metric in (FIRST, LATER) for level in (eager, compiled)]
    sides = [values.get(key, {}) for key in keys]
    blocks = sorted(set(sides[0]).intersection(*sides[1:]))
    if not blocks:
        return None
    table = np.array([[side[block] for block in blocks] for side in sides])
    first, first_compiled, later, later_compiled = np.median(table, axis=1).tolist()
    steps = median([paid_after(*column) for column in table.T.tolist()])
    return BreakEven(stratum, eager, compiled, (first, first_compiled), (later, later_compiled), steps, len(blocks))


def paid_after(first: float, first_compiled: float, later: float, later_compiled: float) -> float:
    """The number of steps that take as long compiled as not, a fraction of a step included; 1 where the first is no slower."""
    more, saved = first_compiled - first, later - later_compiled
    if more <= 0:
        return 1.0
    return 1 + more / saved if saved > 0 else math.inf


def median(values: Sequence[float]) -> Estimate | None:
    """Return the median with its interval of order statistics, whatever the distribution; None of too few values for 95 %."""
    ordered = sorted(values)
    left_out = int(stats.binom.ppf(0.025, len(ordered), 0.5))
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    if not left_out:
        return None
    return Estimate(middle, ordered[left_out - 1], ordered[-left_out])
