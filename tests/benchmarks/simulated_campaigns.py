"""Simulated campaigns that stop when they are settled, or repeat an odd block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.comparison.statistics import autocorrelation, outliers
from experiments.comparison.statistics.autocorrelation import MeanDistribution
from experiments.comparison.statistics.estimates import Floats
from experiments.comparison.statistics.sequential import Looks, schedule
from tests.benchmarks.simulated_reports import ALPHA, MARGIN, NOISES, OUTCOMES, holm

Bools = NDArray[np.bool_]
FIRST, MOST = 6, 48
BEYOND, BELOW, INSIDE = 1, -1, 2


def looks_of(first: int = FIRST, most: int = MOST) -> tuple[Looks, ...]:
    """Return the looks of a campaign, each with those before it."""
    blocks = schedule(first, most)
    return Looks(blocks, (most,) * len(blocks)).each()


def draw(
    name: str, campaigns: int, blocks: int, outcomes: int = OUTCOMES, seed: int = 11
) -> Floats:
    """Draw shifts with a true mean of 0 and an SD of 1, the same every time."""
    noise = NOISES[name][0]
    scale = noise(np.random.default_rng(1), (2_000, 1, 20)).std()
    return np.asarray(noise(np.random.default_rng(seed), (campaigns, outcomes, blocks)) / scale)


@dataclass(frozen=True)
class Stopped:
    """Blocks, verdict (0: none), and whether a difference was shown, of each campaign."""

    blocks: NDArray[np.int_]
    verdict: NDArray[np.int_]
    different: NDArray[np.int_]


def at_every_look(noise: Floats, looks: Sequence[Looks]) -> list[MeanDistribution]:
    """Return distributions of the first outcome's mean; noise: (campaigns, outcomes, blocks)."""
    every = []
    for look in looks:
        means = autocorrelation.distributions(autocorrelation.fit(noise[..., : look.blocks[-1]]))
        every.append(means[(slice(None), 0)])  # type: ignore[index]
    return every


def stop(
    means: Sequence[MeanDistribution], looks: Sequence[Looks], sd: float, ratio: float
) -> Stopped:
    """End each campaign at the look that settles its first outcome, or at the last.

    Args:
        means: Of noise with mean 0 and SD 1.
        looks: The look of each of `means`.
        sd: Of the log-ratio of a block.
        ratio: The true one.
    """
    campaigns = len(means[0].fits.df)
    result = Stopped(*(np.zeros(campaigns, dtype=int) for _ in range(3)))
    live = np.arange(campaigns)
    zero, low, high = ((bound - math.log(ratio)) / sd for bound in (0.0, -MARGIN, MARGIN))
    for mean, look in zip(means, looks, strict=True):
        now = mean[live]  # type: ignore[index]
        level, both = look.level(ALPHA), look.level(2 * ALPHA)
        different = 2 * np.minimum(now.p_above(zero), now.p_below(zero)) <= level
        beyond, below = now.p_above(high) < level / 2, now.p_below(low) < level / 2
        inside = np.maximum(now.p_above(low), now.p_below(high)) < both / 2
        verdict = np.select(
            [different & beyond, different & below, inside], [BEYOND, BELOW, INSIDE], 0
        )
        ends = (verdict != 0) | (look is looks[-1])
        result.blocks[live[ends]] = look.blocks[-1]
        result.verdict[live[ends]], result.different[live[ends]] = verdict[ends], different[ends]
        live = live[~ends]
        if not len(live):
            break
    return result


@dataclass(frozen=True)
class Errors:
    """Shares of campaigns that end with a wrong verdict.

    different: a difference where there is none. equivalent, beyond: at a true ratio of the margin.
    """

    different: float
    equivalent: float
    beyond: float


def errors(noise: Floats, looks: Sequence[Looks]) -> Errors:
    """Return the largest error rates over several spreads."""
    means = at_every_look(noise, looks)
    none = [stop(means, looks, sd, 1.0).different.mean() for sd in (0.04, 0.1)]
    edge = [stop(means, looks, sd, math.exp(MARGIN)).verdict for sd in (0.015, 0.04)]
    return Errors(
        max(map(float, none)),
        max(float((verdict == INSIDE).mean()) for verdict in edge),
        max(float((verdict == BEYOND).mean()) for verdict in edge),
    )


def wald_blocks(sd: float, ratio: float, error: float = ALPHA / 2) -> float:
    """Return the mean blocks of Wald's SPRT with known SD, by his approximation without overshoot.

    Of a true log-ratio of the margin against the true one, with this rate of both errors, where the
    second is true. Source: Wald 1947, section 3.5.
    """
    distance = (math.log(ratio) - MARGIN) / sd
    bound = math.log((1 - error) / error)
    return 2 * (1 - 2 * error) * bound / distance**2


def sprt_blocks(
    sd: float, ratio: float, error: float = ALPHA / 2, campaigns: int = 20_000
) -> float:
    """Return the same of simulated campaigns, which add whole blocks."""
    distance = (math.log(ratio) - MARGIN) / sd
    drawn = np.random.default_rng(2).standard_normal((campaigns, 400)) + distance
    evidence = np.cumsum(distance * drawn - distance**2 / 2, axis=1)
    return float((np.abs(evidence) >= math.log((1 - error) / error)).argmax(axis=1).mean() + 1)


# ---- one odd block


def with_repeats(shifts: Floats) -> tuple[Floats, Bools]:
    """Return the shifts that count, in the order of time, and which campaigns repeated a block.

    shifts: (campaigns, outcomes, blocks + 1), of which the last is measured only as a repetition.
    The first outcome is declared.
    """
    blocks = shifts.shape[-1] - 1
    counted, repeated = shifts[..., :blocks].copy(), np.zeros(len(shifts), dtype=bool)
    labels = [str(block) for block in range(blocks)]
    for at, campaign in enumerate(shifts):
        odd = outliers.odd_blocks([(labels, campaign[0, :blocks])])
        if len(odd) == 1:
            counted[at] = np.delete(campaign, int(next(iter(odd))), axis=-1)
            repeated[at] = True
    return counted, repeated


def slow_block(shifts: Floats) -> Floats:
    """Return the shifts with one block in which either side took twice as long in every outcome."""
    rng = np.random.default_rng(3)
    campaigns, slowed = np.arange(len(shifts)), shifts.copy()
    block, sign = (
        rng.integers(0, shifts.shape[-1] - 1, len(shifts)),
        rng.choice([-1.0, 1.0], len(shifts)),
    )
    slowed[campaigns, :, block] += math.log(2) * sign[:, None]
    return slowed


@dataclass(frozen=True)
class Fixed:
    """Answers of campaigns with a fixed number of blocks; the first outcome is declared.

    different, slower, equivalent: of it. any_different: among all outcomes, by Holm's correction.
    """

    different: Bools
    slower: Bools
    equivalent: Bools
    any_different: Bools


def judge(shifts: Floats) -> Fixed:
    """Judge (campaigns, outcomes, blocks) as `compare` does."""
    means = autocorrelation.distributions(autocorrelation.fit(shifts))
    first, p = means[(slice(None), 0)], means.p()  # type: ignore[index]
    different = p[:, 0] <= ALPHA
    slower = different & (first.p_above(MARGIN) < ALPHA / 2)
    any_different = np.asarray((holm(p) <= ALPHA).any(axis=-1))
    return Fixed(different, slower, first.p_within(MARGIN) < ALPHA, any_different)
