"""Runs and blocks that are unlike all others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from experiments.comparison.statistics.estimates import Floats, is_constant, numbers

# Share of campaigns of independent normal shifts in which some block is odd. It is small because
# a long tail on one side is no disturbance: at 2.5 % a repeat doubles its false differences, at
# 0.3 % it adds half (simulated).
LEVEL = 0.003
MINIMUM_SHIFTS = 5
FAR = 3.5


def high_values(values: Floats) -> int:
    """Return how many values have a modified z-score above 3.5 (Iglewicz & Hoaglin 1993).

    Of independent normal runs 5 to 10 % of sides have one (simulated, 6 to 43 runs). There is none
    if more than half of the values agree.
    """
    apart = values - np.median(values)
    spread = float(np.median(np.abs(apart)))
    return int((0.6745 * apart > FAR * spread).sum()) if spread else 0


def more_p(
    first: int, first_count: int, second: int, second_count: int, *, two_sided: bool = False
) -> float:
    """Return the p of Fisher's exact test that more of the first runs are such, or of either."""
    table = [[first, first_count - first], [second, second_count - second]]
    alternative = "two-sided" if two_sided else "greater"
    return float(stats.fisher_exact(table, alternative).pvalue)


def outlier(shifts: ArrayLike, level: float = LEVEL) -> tuple[int, float] | None:
    """Return the place of an outlier and its distance from the others' mean in SDs, or None.

    Grubbs' (1950) two-sided test: the largest externally studentised deviation against the t
    distribution at level / n. There is none among fewer than five shifts, or constant others.
    """
    values = numbers(shifts)
    n = len(values)
    if n < MINIMUM_SHIFTS:
        return None
    place = int(np.abs(values - values.mean()).argmax())
    others = np.delete(values, place)
    if is_constant(others, float(np.abs(values).max())):
        return None
    distance = abs(values[place] - others.mean()) / others.std(ddof=1)
    if distance / math.sqrt(n / (n - 1)) <= -special.stdtrit(n - 2, level / (2 * n)):
        return None
    return place, float(distance)


def odd_blocks(
    rows: Sequence[tuple[Sequence[str], ArrayLike]], level: float = LEVEL
) -> dict[str, tuple[int, float]]:
    """Return the blocks that are outliers of any row, with the row and the distance in SDs.

    A row is tested again without its outlier, so that two odd blocks of it are two. The level is
    that of all rows together, by Bonferroni's inequality.

    Args:
        rows: The labels of the blocks of each row, and the shifts in them.
        level: Share of campaigns with an odd block, where shifts are normal and independent.
    """
    odd: dict[str, tuple[int, float]] = {}
    for row, (blocks, shifts) in enumerate(rows):
        labels, values = list(blocks), numbers(shifts)
        for _ in range(2):
            if (match := outlier(values, level / len(rows))) is None:
                break
            place, distance = match
            odd.setdefault(labels[place], (row, distance))
            labels, values = labels[:place] + labels[place + 1 :], np.delete(values, place)
    return odd
