"""Tests and intervals that hold at each look of a campaign that stops when it is settled.

Group-sequential boundaries by a spending function over the blocks (Lan and DeMets 1983) and
repeated confidence intervals (Jennison and Turnbull 2000, chapters 7, 9 and 19).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import interpolate, special

from experiments.comparison.statistics.estimates import Floats
from experiments.comparison.statistics.significance import ALPHA

SPENDING = "log(1 + (e - 1) blocks / most blocks), as Pocock's boundary (Lan and DeMets 1983)"
# The boundaries are those of z. The t of one look resembles that of the next less, since the
# estimated SD changes too: over all looks 4 to 8 % more campaigns cross them (simulated).
FOR_T = 0.93
_QUADRATURE = np.polynomial.legendre.leggauss(128)
# From here on a look after every block costs time and saves next to nothing.
EVERY_BLOCK = 48
# Error rates whose levels are computed; the rate of a level between them is interpolated, and
# below the least in proportion.
_RATES = np.unique([*np.geomspace(1e-12, 0.9, 60), ALPHA, 2 * ALPHA])


def schedule(first: int, most: int) -> tuple[int, ...]:
    """Return the blocks after which is looked: every one from the first, up to `EVERY_BLOCK`.

    After that a look follows when a 24th of the blocks has been added; the last is `most`.
    """
    looks = [min(first, most)]
    while looks[-1] < most:
        step = 1 if looks[-1] < EVERY_BLOCK else 2 * looks[-1] // EVERY_BLOCK
        looks.append(min(looks[-1] + step, most))
    return tuple(looks)


def batches(first: int, most: int) -> tuple[int, ...]:
    """Return the looks of a campaign whose blocks run side by side, several before each look.

    After the first look half as many blocks again and twice as many in turn; the last is `most`.
    """
    steps = (
        math.ceil(first * 2**doublings * share)
        for doublings in range(most.bit_length())
        for share in (1, 1.5)
    )
    return (*(blocks for blocks in steps if blocks < most), most)


def spending(share: float) -> float:
    """Return the share of the error rate that is spent so far, about as by Pocock's boundary.

    Args:
        share: Blocks so far over the most blocks, 0 to 1.

    Returns:
        0 to 1, rising with the share.
    """
    return math.log1p((math.e - 1) * share)


@dataclass(frozen=True)
class Looks:
    """Looks that a campaign has had, the last of them now; none for a fixed number of blocks.

    Attributes:
        blocks: Number of blocks at each look, ascending.
        planned: Most blocks that there could be, as it was set at each look.
    """

    blocks: tuple[int, ...] = ()
    planned: tuple[int, ...] = ()

    @property
    def spent(self) -> tuple[float, ...]:
        """Share of the error rate that is spent up to every look, by `spending`.

        Where the most blocks change, what is left is spent on the blocks that are left: nothing is
        spent twice where the campaign is extended.
        """
        spent = [0.0]
        for (before, now), most in zip(pairwise((0, *self.blocks)), self.planned, strict=True):
            start, end = spending(before / most), spending(now / most)
            spent.append(spent[-1] + (1 - spent[-1]) * (end - start) / (1 - start))
        return tuple(spent[1:])

    @property
    def confidence(self) -> float:
        """Confidence of the interval at this look, for 95 % over all looks together."""
        return 1 - self.level(ALPHA)

    def level(self, rate: float) -> float:
        """Return the two-sided level at this look for an error rate of all looks together.

        Args:
            rate: 5 % or, for two one-sided tests, 10 %.
        """
        if not self.blocks:
            return rate
        return float(_state(self).levels[rate == _RATES][0])

    def p(self, nominal: ArrayLike) -> Floats:
        """Return the least error rate at which this look rejects, from a two-sided nominal p."""
        level = np.asarray(nominal, dtype=float)
        if not self.blocks:
            return level
        levels = _state(self).levels
        inside = np.exp(_curve(self)(np.log(np.clip(level, levels[0], 1.0))))
        return np.asarray(np.where(level < levels[0], level / levels[0] * _RATES[0], inside))

    def one_sided(self, nominal: ArrayLike) -> Floats:
        """Return the least error rate at which this look rejects, from a one-sided nominal p.

        Args:
            nominal: p-values as of a campaign with a single look.
        """
        level = np.asarray(nominal, dtype=float)
        return self.p(2 * level) / 2 if self.blocks else level

    def each(self) -> tuple[Looks, ...]:
        """Return each look with those before it."""
        return tuple(
            Looks(self.blocks[:count], self.planned[:count])
            for count in range(1, len(self.blocks) + 1)
        )

    def ahead(self) -> tuple[Looks, ...]:
        """Return the looks to come, each with those before it."""
        if not self.blocks:
            return ()
        looks, most = [self], self.planned[-1]
        for blocks in schedule(self.blocks[0], most):
            if blocks > self.blocks[-1]:
                looks.append(Looks((*looks[-1].blocks, blocks), (*looks[-1].planned, most)))
        return tuple(looks[1:])


FIXED = Looks()


def strictest(looks: Iterable[Looks]) -> Looks:
    """Return the looks with the widest intervals among those of several campaigns.

    Args:
        looks: Looks of each campaign.

    Returns:
        Those with the lowest level; `FIXED` without a campaign.
    """
    return min(looks, key=lambda of_campaign: of_campaign.level(ALPHA), default=FIXED)


class _Paths(NamedTuple):
    """Position and density of the paths that have crossed no boundary; (rates, nodes)."""

    at: Floats
    density: Floats


class _State(NamedTuple):
    """Paths that are left after a look, and its two-sided level, for each error rate."""

    paths: _Paths
    levels: Floats


@lru_cache(maxsize=256)
def _state(looks: Looks) -> _State:
    """Return the state at the last look from that at the look before, which is computed once."""
    earlier = Looks(looks.blocks[:-1], looks.planned[:-1])
    paths = _state(earlier).paths if earlier.blocks else _start(len(_RATES))
    before, sooner = (earlier.blocks[-1], earlier.spent[-1]) if earlier.blocks else (0, 0.0)
    step = math.sqrt(looks.blocks[-1] - before)
    edges = _edges(paths, step, FOR_T * _RATES * (looks.spent[-1] - sooner))
    levels = 2 * special.ndtr(-edges / math.sqrt(looks.blocks[-1]))
    return _State(_onward(paths, step, edges), levels)


@lru_cache(maxsize=64)
def _curve(looks: Looks) -> interpolate.PchipInterpolator:
    """Return the logarithm of the error rate as a function of that of the level."""
    return interpolate.PchipInterpolator(
        np.log([*_state(looks).levels, 1.0]), np.log([*_RATES, 1.0])
    )


def crossed(information: Sequence[float], critical: Sequence[float]) -> float:
    """Return how often a Brownian motion without drift is beyond ±critical SDs at any look."""
    share, paths = 0.0, _start(1)
    for (before, now), z in zip(pairwise((0.0, *information)), critical, strict=True):
        step, edges = math.sqrt(now - before), np.array([z * math.sqrt(now)])
        share += float(_crossing(paths, step, edges)[0][0])
        paths = _onward(paths, step, edges)
    return share


def _start(rates: int) -> _Paths:
    return _Paths(np.zeros((rates, 1)), np.ones((rates, 1)))


def _onward(paths: _Paths, step: float, edges: Floats) -> _Paths:
    """Return the paths that stay inside ±edges in their next step, of this standard deviation."""
    nodes, weights = _QUADRATURE
    reach = np.minimum(edges, np.abs(paths.at).max(axis=1) + 9 * step)[:, None]
    at = reach * nodes
    onward = np.exp(-(((at[:, :, None] - paths.at[:, None, :]) / step) ** 2) / 2)
    density = np.einsum("rij,rj->ri", onward, paths.density) / (step * math.sqrt(2 * math.pi))
    return _Paths(at, reach * weights * density)


def _crossing(paths: _Paths, step: float, edges: Floats) -> tuple[Floats, Floats]:
    """Return the share of all paths that crosses ±edges in the next step, and its slope."""
    above, below = (paths.at - edges[:, None]) / step, (-paths.at - edges[:, None]) / step
    share = ((special.ndtr(above) + special.ndtr(below)) * paths.density).sum(axis=1)
    slope = ((np.exp(-(above**2) / 2) + np.exp(-(below**2) / 2)) * paths.density).sum(axis=1)
    return share, -slope / (step * math.sqrt(2 * math.pi))


def _edges(paths: _Paths, step: float, shares: Floats) -> Floats:
    """Return how far from 0 the boundaries lie that these shares cross, by Newton's method.

    The logarithm of the share falls ever faster with the distance; steps that leave the bracket are
    halvings of it.
    """
    low, high = np.zeros(len(shares)), np.abs(paths.at).max(axis=1) + 36 * step
    least = _crossing(paths, step, low)[0]
    at = np.full(len(shares), step)
    targets = np.log(np.maximum(shares, 1e-300))
    for _ in range(100):
        share, slope = _crossing(paths, step, at)
        miss = np.log(np.maximum(share, 1e-300)) - targets
        low, high = np.where(miss > 0, at, low), np.where(miss > 0, high, at)
        newton = at - miss * np.maximum(share, 1e-300) / np.minimum(slope, -1e-300)
        then = np.where((low < newton) & (newton < high), newton, (low + high) / 2)
        moved = np.abs(then - at).max()
        at = then
        if moved < 1e-12 * step:
            break
    return np.where(shares <= 0, math.inf, np.where(least <= shares, 0.0, at))
