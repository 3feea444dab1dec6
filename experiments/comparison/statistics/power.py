"""What a number of blocks can show, and how many more would settle what is open. Pure functions.

Everything is on the scale of the test: logarithms for ratios, differences as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from experiments.comparison.statistics.estimates import Floats, t_quantile
from experiments.comparison.statistics.significance import ALPHA

POWER = 0.8
MAXIMUM_BLOCKS = 100_000
# The numbers of further blocks that are tried: every one up to 16, then in steps of 6 %, finer than any of them is known.
_MORE = np.unique(np.rint(np.geomspace(1, MAXIMUM_BLOCKS, 200))).astype(int)


def power_of_t(effect: float, sd: float, n: float, *, alpha: float = ALPHA) -> float:
    """Power of the two-sided paired t test for a true difference `effect` at n pairs."""
    df = n - 1
    shift = abs(effect) / sd * math.sqrt(n)
    critical = t_quantile(1 - alpha / 2, df)
    # straight from `special`: a report asks for hundreds of these, and `stats.nct` takes ten times as long for the same
    near, far = 1 - float(special.nctdtr(df, shift, critical)), float(special.nctdtr(df, shift, -critical))
    # SciPy's noncentral t is NaN here and there in the tail that hardly counts (TTestPower passes that on), and for huge shifts
    return (near if math.isfinite(near) else 1.0) + (far if math.isfinite(far) else 0.0)


def minimum_detectable(sd: float, n: int, *, tests: int = 1, power: float = POWER, alpha: float = ALPHA) -> float:
    """Smallest true difference that the paired t test finds with this power, in the unit of sd; infinite below two pairs.

    tests: so many share the error rate `alpha`, which is Holm's first step (Bonferroni): never less than that is needed there.
    """
    if n < 2:
        return math.inf
    return sd * _detectable_in_sds(n, power, alpha / tests) if sd else 0.0


@lru_cache(maxsize=512)
def _detectable_in_sds(n: int, power: float, alpha: float) -> float:
    high = 1.0
    while power_of_t(high, 1.0, n, alpha=alpha) < power:
        high *= 2
    return float(optimize.brentq(lambda d: power_of_t(d, 1.0, n, alpha=alpha) - power, 0.0, high, xtol=1e-10))


def minimum_for_verdict(bound: float, sd: float, n: int, *, tests: int = 1, power: float = POWER, alpha: float = ALPHA) -> float:
    """Smallest true difference of which both are shown with this power: that it is one, among `tests`, and lies beyond ±bound.

    The chance is averaged over the estimated SD, given which the mean must exceed what both ask for.
    """
    if n < 2:
        return math.inf
    if not sd:
        return bound
    error = sd / math.sqrt(n)
    spreads = _spreads(n - 1) * error
    beyond, alone = (t_quantile(1 - alpha / 2 / among, n - 1) * spreads for among in (1, tests))
    needed = np.maximum(bound + beyond, alone)
    short = float(needed[0]) - 10 * error, float(needed[-1]) + 10 * error

    def missing(effect: float) -> float:
        # `mean` of so few values takes several times as long as their sum
        return float(np.add.reduce(special.ndtr((effect - needed) / error))) / len(needed) - power

    return float(optimize.brentq(missing, *short, xtol=1e-5 * error))


@lru_cache(maxsize=256)
def _spreads(df: int) -> Floats:
    return estimated_spreads(df)


def estimated_spreads(df: NDArray[np.int_] | int, values: int = 200) -> Floats:
    """Evenly likely values of an estimated SD where the true one is 1, ascending, along the last axis."""
    chances, freedom = (np.arange(values) + 0.5) / values, np.asarray(df, dtype=float)[..., None]
    return np.asarray(np.sqrt(special.chdtri(freedom, 1 - chances) / freedom))


@dataclass(frozen=True)
class Plan:
    """How many more blocks bring the verdict that the estimate points at; None where no payable number does.

    fewest, most: if the true SD is at the lower or upper end of its 80 % interval.
    """

    blocks: int | None
    fewest: int | None
    most: int | None


def blocks_to_settle(
    mean: float, sd: float, n: int, bound: float, *, tests: int = 1, power: float = POWER, alpha: float = ALPHA
) -> Plan:
    """How many blocks, beyond the n that showed this mean and SD, bring a verdict with this power if both are the true ones.

    The verdict is the one that the mean points at: beyond ±bound a difference that stands among `tests` and whose interval lies
    beyond; inside it equivalence. All blocks count, the n that there are among them.
    """
    lower, upper = math.sqrt((n - 1) / special.chdtri(n - 1, 0.1)), math.sqrt((n - 1) / special.chdtri(n - 1, 0.9))
    critical = _critical(n, tests, alpha)
    plan, fewest, most = (_first(abs(mean), sd * share, n, bound, critical, power) for share in (1.0, lower, upper))
    return Plan(plan, fewest, most)


def _first(mean: float, sd: float, n: int, bound: float, critical: _Critical, power: float) -> int | None:
    error = sd / np.sqrt(n + _MORE)[:, None]
    if mean > bound:
        needed = np.maximum(bound + critical.beyond * error, critical.alone * error)
        chances = special.ndtr((mean - needed) / error)
    else:
        room = np.maximum(bound - critical.inside * error, 0.0)
        chances = special.ndtr((room - mean) / error) - special.ndtr((-room - mean) / error)
    enough = chances.mean(axis=1) >= power
    return int(_MORE[int(enough.argmax())]) if enough.any() else None


@dataclass(frozen=True)
class _Critical:
    """(further blocks, estimated SDs): what the mean must exceed, in true standard errors, for one of a verdict's parts.

    beyond: the margin by its interval; alone: zero, among all tests; inside: the margin from within, for equivalence.
    """

    beyond: Floats
    alone: Floats
    inside: Floats


@lru_cache(maxsize=64)
def _critical(n: int, tests: int, alpha: float) -> _Critical:
    df = n + _MORE - 1
    spreads = estimated_spreads(df, 25)
    chances = (1 - alpha / 2, 1 - alpha / 2 / tests, 1 - alpha)
    return _Critical(*(special.stdtrit(df, chance)[:, None] * spreads for chance in chances))
