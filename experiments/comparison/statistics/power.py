"""Power of a number of blocks, and the number of further blocks that would settle an outcome.

Values are on the scale of the test: logarithms for ratios, differences as they are. An SD is the
standard error of the trimmed mean times √blocks, which hardly depends on the blocks.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import optimize, special

from experiments.comparison.statistics.estimates import Floats, kept_values, t_quantile
from experiments.comparison.statistics.significance import ALPHA

POWER = 0.8
# Less misleads near the margin (docs/comparison.md).
PREDICTED = 0.95
MAXIMUM_BLOCKS = 100_000
# Numbers of further blocks that are tried: each up to 16, then in steps of 6 %.
_MORE = np.unique(np.rint(np.geomspace(1, MAXIMUM_BLOCKS, 200))).astype(int)


def power_of_t(effect: float, sd: float, n: int, *, alpha: float = ALPHA) -> float:
    """Return the power of the two-sided test of the trimmed mean of n shifts."""
    df = float(kept_values(n)) - 1
    shift = abs(effect) / sd * math.sqrt(n)
    critical = t_quantile(1 - alpha / 2, df)
    # `stats.nct` takes ten times as long, and a report needs hundreds of these
    near = 1 - float(special.nctdtr(df, shift, critical))
    far = float(special.nctdtr(df, shift, -critical))
    # SciPy's noncentral t is sometimes NaN in the tail that hardly counts, and for huge shifts
    return (near if math.isfinite(near) else 1.0) + (far if math.isfinite(far) else 0.0)


def minimum_detectable(
    sd: float, n: int, *, tests: int = 1, power: float = POWER, alpha: float = ALPHA
) -> float:
    """Return the smallest true difference that the paired t test finds with this power.

    Args:
        tests: Number of tests that share `alpha`, by Holm's first step (Bonferroni).
    """
    if n < 2:
        return math.inf
    return sd * _detectable_in_sds(n, power, alpha / tests) if sd else 0.0


@lru_cache(maxsize=512)
def _detectable_in_sds(n: int, power: float, alpha: float) -> float:
    high = 1.0
    while power_of_t(high, 1.0, n, alpha=alpha) < power:
        high *= 2
    return float(
        optimize.brentq(lambda d: power_of_t(d, 1.0, n, alpha=alpha) - power, 0.0, high, xtol=1e-10)
    )


def minimum_for_verdict(
    bound: float, sd: float, n: int, *, tests: int = 1, power: float = POWER, alpha: float = ALPHA
) -> float:
    """Return the smallest true difference that is shown, and shown to lie beyond ±bound.

    The chance is averaged over the estimated SD, given which the mean must exceed both limits.
    """
    error = sd / math.sqrt(n)
    df = int(kept_values(n)) - 1
    spreads = _estimated_spreads(df, 200) * error
    beyond, single = (t_quantile(1 - alpha / 2 / among, df) * spreads for among in (1, tests))
    needed = np.maximum(bound + beyond, single)
    short = float(needed[0]) - 10 * error, float(needed[-1]) + 10 * error

    def missing(effect: float) -> float:
        # `mean` of so few values takes several times as long as their sum
        return float(np.add.reduce(special.ndtr((effect - needed) / error))) / len(needed) - power

    return float(optimize.brentq(missing, *short, xtol=1e-5 * error))


@lru_cache(maxsize=512)
def _estimated_spreads(df: int, count: int) -> Floats:
    """Return equally likely values of an estimated SD if the true one is 1, ascending."""
    chances = (np.arange(count) + 0.5) / count
    return np.asarray(np.sqrt(special.chdtri(float(df), 1 - chances) / float(df)))


def blocks_to_settle(
    mean: float, sd: float, n: int, bound: float, *, most: int, tests: int = 1, alpha: float = ALPHA
) -> int | None:
    """Return how many more blocks bring a verdict with a predictive probability of 95 %.

    None if no number does. The true mean and SD have their posterior given the n blocks (Jeffreys'
    prior), so a mean that may lie at the margin gets no number. All blocks count. The rule is the
    t rule of `significance`.

    Args:
        mean, sd: Trimmed mean of the n shifts and its SD.
        bound: A verdict is a difference that stands among `tests` and lies beyond ±bound, or
            equivalence within it.
        most: Largest number of further blocks that is considered.
    """
    more = _MORE[: int(np.searchsorted(_MORE, most, side="right"))]
    if not len(more):
        return None
    total, critical = n + more[:, None], _critical(n, tests, alpha)
    true_sd = sd / _estimated_spreads(int(kept_values(n)) - 1, 25)
    error = np.sqrt(((n - 1) * sd**2 + more[:, None] * true_sd**2) / (total - 1) / total)
    # SD of the mean of all blocks, given those that are measured
    moves = true_sd * np.sqrt(more[:, None] / (n * total))
    beyond, single, inside = (quantiles[: len(more), None] * error for quantiles in critical)
    needed, room = np.maximum(bound + beyond, single), np.maximum(bound - inside, 0.0)
    outside = special.ndtr((mean - needed) / moves) + special.ndtr((-mean - needed) / moves)
    within = special.ndtr((room - mean) / moves) - special.ndtr((-room - mean) / moves)
    enough = (outside + within).mean(axis=1) >= PREDICTED
    return int(more[int(enough.argmax())]) if enough.any() else None


@lru_cache(maxsize=64)
def _critical(n: int, tests: int, alpha: float) -> tuple[Floats, Floats, Floats]:
    """Return quantiles of t for the interval, for the test among all, and for equivalence."""
    df = kept_values(n + _MORE) - 1
    beyond, single, inside = (
        special.stdtrit(df, 1 - tail) for tail in (alpha / 2, alpha / 2 / tests, alpha)
    )
    return beyond, single, inside
