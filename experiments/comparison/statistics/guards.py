"""What a paired t test takes for granted, checked: independent blocks, no long tail on one side, no block that decides alone.

Pure functions of shifts in the order in which they were measured. An interval that asks for less stands beside each check.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import signal, special

from experiments.comparison.statistics.estimates import Estimate, Floats, numbers, t_quantile

# Below eight values the distribution of the skewness is not known in a form that can be computed.
MIN_FOR_SKEWNESS = 8
# Beyond this the few values there are say nothing of their mean.
MAX_CORRELATED = 0.9
# What the power of a check is stated for.
TYPICAL_CORRELATION = 0.7
SIMULATED = 2_000


@dataclass(frozen=True)
class Check:
    """A statistic of shifts and its p."""

    statistic: float
    p: float


def lag_one(shifts: ArrayLike) -> Check:
    """Autocorrelation at lag one, and the one-sided p that it is above what chance gives; a negative one harms no test.

    Mean and variance without correlation are Moran's (1948); the p is the normal one. Needs three values that differ.
    """
    found = numbers(shifts, minimum=3)
    r = float(_lag_one(found))
    return Check(r, float(_p_of_lag_one(r, len(found))))


def _lag_one(shifts: Floats) -> Floats:
    centred = shifts - shifts.mean(axis=-1, keepdims=True)
    return np.asarray((centred[..., 1:] * centred[..., :-1]).sum(axis=-1) / (centred**2).sum(axis=-1))


def _p_of_lag_one(r: float | Floats, n: int) -> Floats:
    return np.asarray(special.ndtr(-(r + 1 / n) * n * math.sqrt(n - 1) / (n - 2)))


def skewness(shifts: ArrayLike) -> Check | None:
    """Skewness, and D'Agostino's (1970) two-sided p that it is chance; None below eight values."""
    found = numbers(shifts)
    if len(found) < MIN_FOR_SKEWNESS:
        return None
    g = float(_skewness(found))
    return Check(g, float(_p_of_skewness(g, len(found))))


def _skewness(shifts: Floats) -> Floats:
    squares = (centred := shifts - shifts.mean(axis=-1, keepdims=True)) ** 2
    return np.asarray((squares * centred).mean(axis=-1) / squares.mean(axis=-1) ** 1.5)


def _p_of_skewness(g: float | Floats, n: int) -> Floats:
    """By hand: SciPy's skewtest takes a hundred times as long for the same."""
    y = g * math.sqrt((n + 1) * (n + 3) / (6 * (n - 2)))
    kurtosis = 3 * (n * n + 27 * n - 70) * (n + 1) * (n + 3) / ((n - 2) * (n + 5) * (n + 7) * (n + 9))
    w2 = math.sqrt(2 * (kurtosis - 1)) - 1
    z = np.arcsinh(y / math.sqrt(2 / (w2 - 1))) / math.sqrt(0.5 * math.log(w2))
    return np.asarray(2 * special.ndtr(-np.abs(z)))


def correlated_mean(shifts: ArrayLike, r: float, confidence: float = 0.95) -> Estimate:
    """The mean with an interval for blocks that resemble the block before, as in a process with correlation r at lag one.

    n such blocks are worth n (1 - r) / (1 + r) independent ones (Bayley and Hammersley 1946). r, as measured, is too small by
    (1 + 4 r) / n on average (Kendall 1954), and so is the variance; both are corrected.
    """
    found = numbers(shifts, minimum=3)
    n, centre = len(found), float(found.mean())
    true = min(max((r + 1 / n) / (1 - 4 / n), 0.0), MAX_CORRELATED) if n > 4 else MAX_CORRELATED
    worth = max(2.0, n * (1 - true) / (1 + true))
    variance = float(found.var(ddof=1)) * (n - 1) / (n - n / worth)
    half = t_quantile((1 + confidence) / 2, max(worth - 1, 1.0)) * math.sqrt(variance / worth)
    return Estimate(centre, centre - half, centre + half)


def skewed_mean(shifts: ArrayLike, confidence: float = 0.95) -> Estimate:
    """The mean with the t interval of Hall's (1992) transformation, which takes the skewness out of the t statistic."""
    found = numbers(shifts, minimum=3)
    n, centre, g = len(found), float(found.mean()), float(_skewness(found))
    high, low = (_untransformed(sign * t_quantile((1 + confidence) / 2, n - 1) / math.sqrt(n - 1), g, n) for sign in (1, -1))
    sd = float(found.std())
    return Estimate(centre, centre - sd * high, centre - sd * low)


def _untransformed(value: float, g: float, n: int) -> float:
    """The t statistic / √n whose transformation is `value`: T + g T² / 3 + g² T³ / 27 + g / (6 n), turned round."""
    if abs(g) < 1e-9:
        return value
    return 3 / g * (float(np.cbrt(1 + g * (value - g / (6 * n)))) - 1)


@dataclass(frozen=True)
class LeftOut:
    """What is left when each value in turn is left out: means, standard errors, and their degrees of freedom."""

    means: Floats
    errors: Floats
    df: int

    def p(self) -> Floats:
        """Two-sided t tests that the means are 0."""
        return np.asarray(2 * special.stdtr(self.df, -np.abs(self.means) / self.errors))

    def p_within(self, bound: float) -> Floats:
        """Two one-sided t tests that the means lie inside ±bound."""
        return np.asarray(special.stdtr(self.df, (np.abs(self.means) - bound) / self.errors))

    def half(self, confidence: float = 0.95) -> Floats:
        return t_quantile((1 + confidence) / 2, self.df) * self.errors


def leave_one_out(shifts: ArrayLike) -> LeftOut:
    """The t statistics of all values but one, for every one of at least four."""
    found = numbers(shifts, minimum=4)
    n, centred = len(found), found - found.mean()
    means = -centred / (n - 1)
    squares = (centred**2).sum() - centred**2 * n / (n - 1)
    errors = np.sqrt(np.maximum(squares, np.finfo(float).tiny) / ((n - 2) * (n - 1)))
    return LeftOut(found.mean() + means, errors, n - 2)


@lru_cache(maxsize=64)
def power_of_lag_one(n: int, alpha: float = 0.05) -> float:
    """How often the check finds a correlation of 0.7 in n blocks; simulated, the same every time."""
    drawn = np.random.default_rng(n).standard_normal((SIMULATED, n))
    drawn[:, 1:] *= math.sqrt(1 - TYPICAL_CORRELATION**2)
    series = signal.lfilter([1.0], [1.0, -TYPICAL_CORRELATION], drawn, axis=-1)
    return float((_p_of_lag_one(_lag_one(series), n) < alpha).mean())


@lru_cache(maxsize=64)
def power_of_skewness(n: int, alpha: float = 0.05) -> float:
    """How often the check finds the skewness of exponential noise in n blocks; simulated, the same every time."""
    drawn = np.random.default_rng(n).standard_exponential((SIMULATED, n))
    return float((_p_of_skewness(_skewness(drawn), n) < alpha).mean())
