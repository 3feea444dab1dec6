"""Variance components of paired runs: drift over the blocks, blocks, processes, steps.

The value of a run, on the scale of the test, is modelled as
    level + drift · time + block + (±) drift apart · time + process,
with the number of its block as time. Drift and block cancel in the difference of a block. What is
left (processes, and a drift of one side) limits how small a difference can be detected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from experiments.comparison.statistics.estimates import Floats, numbers, t_quantile

# A slope takes two degrees of freedom, and its residuals need one more.
MIN_BLOCKS = 4
BATCHES = 10


@dataclass(frozen=True)
class Slope:
    """Straight line over the blocks.

    Attributes:
        rise: From the first block to the last, with its 95 % interval `low`, `high`.
        sd: Of the values on the line, without the noise of its estimate.
        residual: SD about the line.
    """

    rise: float
    low: float
    high: float
    sd: float
    residual: float

    @property
    def is_shown(self) -> bool:
        """True if chance does not explain the rise."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Components:
    """Standard deviations of a run's value.

    Attributes:
        process: Of two runs of one level in the same block.
        block: Of what both runs of a block share, about the drift.
        drift: Of both sides.
        apart: Of b against a.
    """

    process: float
    block: float
    drift: Slope
    apart: Slope

    @property
    def difference(self) -> float:
        """SD of the difference of a block."""
        return math.hypot(math.sqrt(2) * self.process, self.apart.sd)


def components(a: ArrayLike, b: ArrayLike) -> Components:
    """Estimate the components from the values of both sides, block by block in time order.

    Half the residual variance of the differences is that of processes. The residual variance of the
    blocks' means, less half of that, is that of blocks (0 if negative). Needs four blocks.
    """
    first, second = numbers(a, minimum=MIN_BLOCKS), numbers(b, minimum=MIN_BLOCKS)
    apart, drift = slope(second - first), slope((first + second) / 2)
    process = apart.residual / math.sqrt(2)
    return Components(
        process, math.sqrt(max(0.0, drift.residual**2 - process**2 / 2)), drift, apart
    )


def slope(values: Floats) -> Slope:
    """Fit a line by least squares to values at 0, 1, 2 …"""
    n = len(values)
    time = np.arange(n) - (n - 1) / 2
    squares = float(time @ time)
    rate = float(time @ values) / squares
    residual = math.sqrt(float(((values - values.mean() - rate * time) ** 2).sum()) / (n - 2))
    half = t_quantile(0.975, n - 2) * residual / math.sqrt(squares)
    sd = math.sqrt(max(0.0, rate**2 - residual**2 / squares) * squares / (n - 1))
    return Slope((n - 1) * rate, (n - 1) * (rate - half), (n - 1) * (rate + half), sd, residual)


def error_of_steps(logs: ArrayLike) -> float:
    """Return the standard error of a run's mean due to its steps, which may be autocorrelated.

    By the means of ten batches (Schmeiser 1982); below twenty steps as if they were independent.
    """
    steps = numbers(logs, minimum=2)
    if len(steps) < 2 * BATCHES:
        return float(steps.std(ddof=1)) / math.sqrt(len(steps))
    means = [part.mean() for part in np.array_split(steps, BATCHES)]
    return float(np.std(means, ddof=1)) / math.sqrt(BATCHES)


__all__ = ["MIN_BLOCKS", "Components", "Slope", "components", "error_of_steps", "slope"]
