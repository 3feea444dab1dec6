"""Where the spread of paired runs comes from: drift over the blocks, blocks, processes, steps. Pure functions.

A run's value, on the scale of the test, is taken for
    level + drift · time + block + (±) drift apart · time + process,
with time the number of its block. What both sides of a block share (drift and block) cancels in their difference; what is left
in it (processes, and a drift of one side alone) limits how small a difference can be told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from experiments.comparison.statistics.estimates import Floats, numbers, t_quantile

# A slope over the blocks takes two of the values, and its residuals need one more degree of freedom.
MIN_BLOCKS = 4
BATCHES = 10


@dataclass(frozen=True)
class Slope:
    """A straight line over the blocks. rise: from the first block to the last; low, high: its 95 % interval.

    sd: what the line alone makes the values vary by, without what noise adds to its estimate; residual: SD about it.
    """

    rise: float
    low: float
    high: float
    sd: float
    residual: float

    @property
    def is_shown(self) -> bool:
        """Whether chance does not explain the rise."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Components:
    """SDs of one run's value, but for the slopes' rises. process: of two runs of one level in the same block.

    block: of what both runs of a block share, about the drift. drift: of both sides; apart: of b against a.
    """

    process: float
    block: float
    drift: Slope
    apart: Slope

    @property
    def difference(self) -> float:
        """SD of the difference of a block, as processes and the drift apart make it."""
        return math.hypot(math.sqrt(2) * self.process, self.apart.sd)


def components(a: ArrayLike, b: ArrayLike) -> Components:
    """From the values of both sides on the scale of the test, block by block in the order of time. Needs four blocks.

    Half the residual variance of the differences is that of processes; the residual variance of the blocks' means, less half of
    that, is that of blocks (0 where that is negative).
    """
    first, second = numbers(a, minimum=MIN_BLOCKS), numbers(b, minimum=MIN_BLOCKS)
    apart, drift = slope(second - first), slope((first + second) / 2)
    process = apart.residual / math.sqrt(2)
    return Components(
        process, math.sqrt(max(0.0, drift.residual**2 - process**2 / 2)), drift, apart
    )


def slope(values: Floats) -> Slope:
    """The line of least squares through values at 0, 1, 2 …"""
    n = len(values)
    time = np.arange(n) - (n - 1) / 2
    squares = float(time @ time)
    rate = float(time @ values) / squares
    residual = math.sqrt(float(((values - values.mean() - rate * time) ** 2).sum()) / (n - 2))
    half = t_quantile(0.975, n - 2) * residual / math.sqrt(squares)
    sd = math.sqrt(max(0.0, rate**2 - residual**2 / squares) * squares / (n - 1))
    return Slope((n - 1) * rate, (n - 1) * (rate - half), (n - 1) * (rate + half), sd, residual)


def error_of_steps(logs: ArrayLike) -> float:
    """Standard error of a run's mean that its own steps leave, whether or not a step resembles the one before.

    By the means of ten batches of steps that follow each other (Schmeiser 1982); below twenty steps as if they were independent.
    """
    found = numbers(logs, minimum=2)
    if len(found) < 2 * BATCHES:
        return float(found.std(ddof=1)) / math.sqrt(len(found))
    means = [part.mean() for part in np.array_split(found, BATCHES)]
    return float(np.std(means, ddof=1)) / math.sqrt(BATCHES)


__all__ = ["MIN_BLOCKS", "Components", "Slope", "components", "error_of_steps", "slope"]
