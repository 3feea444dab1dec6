"""Typical values of autocorrelated blocks: their confidence distributions, from shared evidence.

A trimmed mean with winsorised errors, so that single slow runs neither move nor blur it, in a
mixture of t distributions over AR(1) coefficients. Autocorrelation belongs to a machine at a time,
so every outcome of a campaign weighs the coefficients with the likelihoods of all others.
Pure functions of shifts in the order of time; arrays may have more axes in front (simulations).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from experiments.comparison.statistics.estimates import Floats, trim
from experiments.comparison.statistics.significance import SMALLEST_P

# AR(1) coefficients; the first stands for independent blocks.
COEFFICIENTS = np.arange(10) / 10
# Share of a campaign's outcomes that are autocorrelated, and its prior. They share one coefficient.
SHARES = np.array([0.0, 0.1, 0.3, 0.6, 1.0])
PRIOR = np.array([0.68, 0.10, 0.08, 0.07, 0.07])
_STEPS = 64


@dataclass(frozen=True)
class Fits:
    """AR(1) models of series, one for every coefficient (last axis).

    log_likelihood: restricted, less that of independent blocks. centre: the trimmed mean, moved as
    generalised least squares move the winsorised mean; error: its standard error, with `df` degrees
    of freedom. df is without that axis.
    """

    log_likelihood: Floats
    centre: Floats
    error: Floats
    df: Floats

    def __getitem__(self, at: int) -> Fits:
        """Return the fits of one outcome."""
        return Fits(*(values[at] for values in vars(self).values()))


def fit(shifts: ArrayLike) -> Fits:
    """Fit the models to series (time last) of at least three values that are not constant.

    They are fitted to the winsorised series. Of independent blocks centre and error are those of
    the trimmed mean; autocorrelation moves and widens them as it does those of a mean.
    """
    series = np.asarray(shifts, dtype=float)
    n = series.shape[-1]
    trimmed = trim(series)
    whiten, weights, precision, log_determinant = _models(n)
    mean = trimmed.winsorised @ weights.T
    apart = trimmed.winsorised[..., None, :] - mean[..., None]
    whitened = np.einsum("kij,...kj->...ki", whiten, apart)
    squares = np.maximum((whitened**2).sum(axis=-1), np.finfo(float).tiny)
    log_likelihood = -0.5 * (log_determinant + np.log(precision) + (n - 1) * np.log(squares))
    error = np.sqrt(squares / precision)
    return Fits(
        log_likelihood - log_likelihood[..., :1],
        trimmed.centre[..., None] + mean - mean[..., :1],
        trimmed.error[..., None] * error / error[..., :1],
        trimmed.df,
    )


@lru_cache(maxsize=64)
def _models(n: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Return whitening matrices, weights and precision of the mean, log |R|, by coefficient."""
    phi = COEFFICIENTS[:, None]
    scale = np.sqrt(1 - phi**2)
    whiten = np.zeros((len(COEFFICIENTS), n, n))
    whiten[:, 0, 0] = 1.0
    later = np.arange(1, n)
    whiten[:, later, later] = 1 / scale
    whiten[:, later, later - 1] = -phi / scale
    ones = whiten.sum(axis=-1)
    precision = (ones**2).sum(axis=-1)
    weights = np.einsum("kij,ki->kj", whiten, ones) / precision[:, None]
    return whiten, weights, precision, 2 * (n - 1) * np.log(scale[:, 0])


def posterior(log_likelihood: Floats) -> Floats:
    """Return the weights of coefficients for every outcome, (…, outcomes, coefficients).

    An outcome's own likelihood counts once, those of all others through what they share.
    """
    ratios = np.exp(np.clip(log_likelihood[..., 1:], -600.0, 600.0))
    evidence = np.log((1 - SHARES)[:, None] + SHARES[:, None] * ratios[..., None, :])
    others = evidence.sum(axis=-3, keepdims=True) - evidence + np.log(PRIOR)[:, None]
    shared = np.exp(others - others.max(axis=(-2, -1), keepdims=True)) / ratios.shape[-1]
    independent = (shared * (1 - SHARES)[:, None]).sum(axis=(-2, -1))
    autocorrelated = (shared * SHARES[:, None] * ratios[..., None, :]).sum(axis=-2)
    weights = np.concatenate([independent[..., None], autocorrelated], axis=-1)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class MeanDistribution:
    """Confidence distributions of trimmed means: intervals and p-values from the same tails.

    weights: of the coefficients.
    """

    fits: Fits
    weights: Floats

    def __getitem__(self, at: int) -> MeanDistribution:
        """Return the distribution of one outcome."""
        return MeanDistribution(self.fits[at], self.weights[at])

    @property
    def autocorrelation(self) -> Floats:
        """Expected AR(1) coefficient."""
        return np.asarray((self.weights * COEFFICIENTS).sum(axis=-1))

    @property
    def autocorrelated(self) -> Floats:
        """Weight of all coefficients above 0."""
        return np.asarray(1 - self.weights[..., 0])

    def p_above(self, bound: float) -> Floats:
        """Return the one-sided p that the typical value lies above the bound.

        Args:
            bound: Largest value of the hypothesis that is tested, on the scale of the shifts.

        Returns:
            A p for each outcome, (…, outcomes).
        """
        return self._tail(bound, 1.0)

    def p_below(self, bound: float) -> Floats:
        """Return the one-sided p that the typical value lies below the bound.

        Args:
            bound: Smallest value of the hypothesis that is tested, on the scale of the shifts.

        Returns:
            A p for each outcome, (…, outcomes).
        """
        return self._tail(bound, -1.0)

    def p(self) -> Floats:
        """Return the two-sided p that the typical value is not 0.

        Returns:
            A p for each outcome, (…, outcomes), never below `SMALLEST_P`.
        """
        tail = np.minimum(self.p_above(0.0), self.p_below(0.0))
        return np.asarray(np.clip(2 * tail, SMALLEST_P, 1.0))

    def p_within(self, bound: float) -> Floats:
        """Return the larger p of two one-sided tests that the typical value lies inside ±bound.

        Args:
            bound: Margin on the scale of the shifts.

        Returns:
            A p for each outcome, (…, outcomes), never below `SMALLEST_P`.
        """
        tail = np.maximum(self.p_above(-bound), self.p_below(bound))
        return np.asarray(np.clip(tail, SMALLEST_P, 1.0))

    def interval(self, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """Return the bounds beyond which each one-sided p is below (1 - confidence) / 2.

        Args:
            confidence: 0.95 for an interval of 95 %.

        Returns:
            Lower and upper bounds, (…, outcomes) each, on the scale of the shifts.
        """
        return self._quantile((1 - confidence) / 2, 1.0), self._quantile((1 - confidence) / 2, -1.0)

    def _tail(self, bound: float, sign: float) -> Floats:
        below = sign * (bound - self.fits.centre) / self.fits.error
        return np.asarray(
            (self.weights * special.stdtr(self.fits.df[..., None], below)).sum(axis=-1)
        )

    def _quantile(self, tail: float, sign: float) -> Floats:
        fits = self.fits
        t = special.stdtrit(fits.df, tail)
        centres, df = sign * fits.centre, fits.df[..., None]
        single = centres + t[..., None] * fits.error
        low, high = single.min(axis=-1), single.max(axis=-1)
        middle = (self.weights * single).sum(axis=-1)
        height = 1 / (np.sqrt(df) * special.beta(0.5, df / 2))
        for _ in range(_STEPS):  # Newton's, kept inside the bracket by halving it
            z = (middle[..., None] - centres) / fits.error
            missing = tail - (self.weights * special.stdtr(df, z)).sum(axis=-1)
            low, high = np.where(missing >= 0, middle, low), np.where(missing >= 0, high, middle)
            density = height * (1 + z**2 / df) ** (-(df + 1) / 2) / fits.error
            ahead = middle + missing / (self.weights * density).sum(axis=-1)
            is_inside = (ahead >= low) & (ahead <= high)
            before, middle = middle, np.where(is_inside, ahead, (low + high) / 2)
            if (np.abs(middle - before) <= 1e-14 * fits.error[..., 0]).all():
                break
        return np.asarray(sign * middle)


def distributions(fits: Fits) -> MeanDistribution:
    """Return the distributions of all outcomes of one campaign, (…, outcomes)."""
    return MeanDistribution(fits, posterior(fits.log_likelihood))


def distributions_of(series: Sequence[ArrayLike]) -> MeanDistribution:
    """Return the distributions of outcomes whose numbers of blocks may differ.

    Args:
        series: Shifts of each outcome, (blocks,) in the order in which they were measured.

    Returns:
        The same as of `distributions`, (outcomes,).
    """
    fields = zip(*(vars(fit(shifts)).values() for shifts in series), strict=True)
    return distributions(Fits(*map(np.stack, fields)))
