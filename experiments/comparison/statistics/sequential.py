"""Tests and intervals that hold at every look of a campaign that stops when it knows: the error rate is spent look by look.

Group-sequential boundaries by error spending (Lan and DeMets 1983), linear in the blocks (Kim and DeMets 1987), and repeated
confidence intervals (Jennison and Turnbull 2000, chapters 7, 9 and 19). Pure functions.
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
from scipy import interpolate, optimize, special

from experiments.comparison.statistics.estimates import Floats
from experiments.comparison.statistics.significance import ALPHA

SPENDING = "linear in the blocks (Lan and DeMets 1983; Kim and DeMets 1987)"
# The boundaries are those of z. The t of one look resembles that of the next less, since the estimated SD changes too: over
# all looks 4 to 8 % more campaigns cross them, for error rates of 0.1 to 10 % and first looks at 6 to 12 blocks (simulated).
FOR_T = 0.93
NODES = 160
# Error rates whose levels are computed; those between are interpolated, and below the least the level is in proportion.
_RATES = np.unique([*np.geomspace(1e-12, 0.9, 60), ALPHA, 2 * ALPHA])


def schedule(first: int, most: int) -> tuple[int, ...]:
    """Blocks after which is looked: the first look, then half as many again and twice as many in turn, last of all `most`."""
    steps = (math.ceil(first * 2**doublings * share) for doublings in range(most.bit_length()) for share in (1, 1.5))
    return (*(blocks for blocks in steps if blocks < most), most)


@dataclass(frozen=True)
class Looks:
    """The looks that a campaign has had, the last of them now; none for a campaign of a fixed number of blocks.

    blocks: of every look, ascending. planned: the most blocks there could be, as it was settled by then.
    """

    blocks: tuple[int, ...] = ()
    planned: tuple[int, ...] = ()

    @property
    def spent(self) -> tuple[float, ...]:
        """Share of the error rate that is spent up to every look; what is left is spent evenly on the blocks that are left.

        So it is blocks / planned where that stays the same, and nothing is spent twice where the campaign is extended.
        """
        found = [0.0]
        for (before, now), most in zip(pairwise((0, *self.blocks)), self.planned, strict=True):
            found.append(found[-1] + (1 - found[-1]) * (now - before) / (most - before))
        return tuple(found[1:])

    @property
    def confidence(self) -> float:
        """Of the interval at this look, such that those of all looks together hold the truth in at least 95 %."""
        return 1 - self.level(ALPHA)

    def level(self, rate: float) -> float:
        """Two-sided level of the test at this look, if that is the error rate of all looks together."""
        return _levels(self, rate) if self.blocks else rate

    def p(self, nominal: ArrayLike) -> Floats:
        """The least error rate at which this look shows a difference, from a two-sided p of a fixed number of blocks."""
        return np.asarray(_rates(self, np.asarray(nominal, dtype=float)) if self.blocks else nominal)

    def one_sided(self, nominal: ArrayLike) -> Floats:
        """The same from a one-sided p."""
        return self.p(2 * np.asarray(nominal, dtype=float)) / 2 if self.blocks else np.asarray(nominal)

    def one_by_one(self) -> tuple[Looks, ...]:
        """Every look with those before it."""
        return tuple(Looks(self.blocks[:count], self.planned[:count]) for count in range(1, len(self.blocks) + 1))

    def ahead(self) -> tuple[Looks, ...]:
        """The looks to come, each with those before it."""
        found, most = [self], self.planned[-1] if self.planned else 0
        for blocks in schedule(self.blocks[0], most) if self.blocks else ():
            if blocks > self.blocks[-1]:
                found.append(Looks((*found[-1].blocks, blocks), (*found[-1].planned, most)))
        return tuple(found[1:])


FIXED = Looks()


def strictest(looks: Iterable[Looks]) -> Looks:
    """Of several campaigns' looks those with the widest intervals."""
    return min(looks, key=lambda one: one.level(ALPHA), default=FIXED)


@lru_cache(maxsize=4096)
def _levels(looks: Looks, rate: float) -> float:
    critical = boundary(looks.blocks, [FOR_T * rate * share for share in looks.spent])
    return float(2 * special.ndtr(-critical[-1]))


def _rates(looks: Looks, nominal: Floats) -> Floats:
    """The inverse of `_levels`."""
    least, inverse = _inverse(looks)
    inside = np.exp(inverse(np.log(np.clip(nominal, least, 1.0))))
    return np.asarray(np.where(nominal < least, nominal / least * _RATES[0], inside))


@lru_cache(maxsize=64)
def _inverse(looks: Looks) -> tuple[float, interpolate.PchipInterpolator]:
    levels = np.array([_levels(looks, float(rate)) for rate in _RATES])
    return float(levels[0]), interpolate.PchipInterpolator(np.log([*levels, 1.0]), np.log([*_RATES, 1.0]))


def boundary(information: Sequence[float], spent: Sequence[float]) -> Floats:
    """Critical |z| of every look at which a Brownian motion without drift has used `spent` of its error rate, cumulatively.

    information: of every look, ascending, in any unit (blocks). A look that spends nothing has an infinite boundary.
    The density of paths that have crossed no boundary is carried from look to look by Gauss-Legendre quadrature.
    """
    found, paths = list[float](), _START
    for (before, now), (sooner, later) in zip(pairwise((0.0, *information)), pairwise((0.0, *spent)), strict=True):
        step = math.sqrt(now - before)
        edge = _edge(paths, step, later - sooner)
        found.append(edge / math.sqrt(now))
        paths = _onward(paths, step, edge)
    return np.array(found)


def crossed(information: Sequence[float], critical: Sequence[float]) -> float:
    """How often a Brownian motion without drift lies beyond ±critical standard deviations at any look; see `boundary`."""
    found, paths = 0.0, _START
    for (before, now), z in zip(pairwise((0.0, *information)), critical, strict=True):
        step, edge = math.sqrt(now - before), z * math.sqrt(now)
        found += _crossing(paths, step, edge)
        paths = _onward(paths, step, edge)
    return found


class _Paths(NamedTuple):
    """Paths that have crossed no boundary: where they are, and how many of them."""

    at: Floats
    density: Floats


_START = _Paths(np.zeros(1), np.ones(1))


def _onward(paths: _Paths, step: float, edge: float) -> _Paths:
    """The paths that stay inside ±edge in their next step, of this standard deviation."""
    nodes, weights = _quadrature()
    reach = min(edge, float(np.abs(paths.at).max()) + 9 * step)
    onward = np.exp(-(((reach * nodes[:, None] - paths.at) / step) ** 2) / 2) / (step * math.sqrt(2 * math.pi))
    return _Paths(reach * nodes, reach * weights * (onward @ paths.density))


def _crossing(paths: _Paths, step: float, edge: float) -> float:
    """The share of all paths that crosses ±edge in the next step."""
    beyond = special.ndtr((paths.at - edge) / step) + special.ndtr((-paths.at - edge) / step)
    return float(paths.density @ beyond)


def _edge(paths: _Paths, step: float, share: float) -> float:
    """How far from 0 the boundary lies that this share of paths crosses in their next step."""
    if share <= 0:
        return math.inf
    if _crossing(paths, step, 0.0) <= share:
        return 0.0
    farthest = float(np.abs(paths.at).max()) + 36 * step

    def missing(edge: float) -> float:
        return math.log(max(_crossing(paths, step, edge), 1e-300) / share)

    return float(optimize.brentq(missing, 0.0, farthest, xtol=1e-12))


@lru_cache(maxsize=1)
def _quadrature() -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return nodes, weights


__all__ = ["FIXED", "SPENDING", "Looks", "boundary", "crossed", "schedule", "strictest"]
