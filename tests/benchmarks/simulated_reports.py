"""Simulated reports: the rule of every row over arrays, and the noises that it is tried on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import signal, special, stats

from experiments.comparison.statistics import autocorrelation
from experiments.comparison.statistics import power as statistics_power
from experiments.comparison.statistics.autocorrelation import Fits, MeanDistribution
from experiments.comparison.statistics.estimates import Floats

ALPHA, MARGIN, OUTCOMES = 0.05, math.log1p(0.03), 12
BLOCKS = (6, 8, 12, 20, 43)
Shape = tuple[int, int, int]
Noise = Callable[[np.random.Generator, Shape], Floats]


@dataclass(frozen=True)
class Reports:
    """Answers of (reports, outcomes). covers: whether the 95 % interval holds 0."""

    different: Floats
    beyond: Floats
    equivalent: Floats
    covers: Floats


def judge(shifts: Floats) -> Reports:
    """Judge (reports, outcomes, blocks) as `compare` does."""
    return _judge(autocorrelation.distributions(autocorrelation.fit(shifts)))


def judge_by_t(shifts: Floats) -> Reports:
    """Judge the same by t tests of plain means, which take blocks for independent."""
    mean, error = shifts.mean(axis=-1, keepdims=True), stats.sem(shifts, axis=-1)[..., None]
    df = np.full(shifts.shape[:-1], shifts.shape[-1] - 1.0)
    return _judge(MeanDistribution(Fits(np.zeros(1), mean, error, df), np.ones(1)))


def _judge(means: MeanDistribution) -> Reports:
    different = holm(means.p()) <= ALPHA
    outside = np.minimum(means.p_above(MARGIN), means.p_below(-MARGIN)) < ALPHA / 2
    covers = np.minimum(means.p_above(0.0), means.p_below(0.0)) > ALPHA / 2
    return Reports(different, different & outside, means.p_within(MARGIN) < ALPHA, covers)


def holm(p: Floats) -> Floats:
    """Adjust p-values over the last axis."""
    order = np.argsort(p, axis=-1)
    steps = np.take_along_axis(p, order, -1) * np.arange(p.shape[-1], 0, -1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(steps, axis=-1), -1)
    return np.minimum(adjusted, 1.0)


def autocorrelated(phi: float, correlation: float = 0.0, outcomes: int | None = None) -> Noise:
    """AR(1) in the first outcomes (None: all); correlation: between all outcomes of a block."""

    def draw(rng: np.random.Generator, shape: Shape) -> Floats:
        drawn = math.sqrt(1 - correlation) * rng.standard_normal(shape)
        drawn += math.sqrt(correlation) * rng.standard_normal((shape[0], 1, shape[2]))
        drawn[:, :outcomes, 1:] *= math.sqrt(1 - phi**2)
        drawn[:, :outcomes] = signal.lfilter([1.0], [1.0, -phi], drawn[:, :outcomes], axis=-1)
        return drawn

    return draw


def both_sides(of_run: Noise) -> Noise:
    """Differences of two runs with the same noise."""
    return lambda rng, shape: of_run(rng, shape) - of_run(rng, shape)


def about_typical(noise: Noise) -> Noise:
    """Noise with a long tail on one side, about the expected trimmed mean of so many blocks."""

    @lru_cache
    def centre(blocks: int) -> float:
        drawn = noise(np.random.default_rng(0), (50_000, 1, blocks))
        return float(stats.trim_mean(drawn, (blocks // 8) / blocks, axis=-1).mean())

    return lambda rng, shape: noise(rng, shape) - centre(shape[2])


def bimodal(rng: np.random.Generator, shape: Shape) -> Floats:
    modes = math.sqrt(0.9) * rng.choice([-1.0, 1.0], shape)
    return np.asarray(modes + math.sqrt(0.1) * rng.standard_normal(shape))


def lognormal(rng: np.random.Generator, shape: Shape) -> Floats:
    """Draw with mean 0, SD 1, σ .8: skewness 3.7."""
    skewed = np.exp(0.8 * rng.standard_normal(shape)) - math.exp(0.32)
    return np.asarray(skewed / math.sqrt(math.expm1(0.64) * math.exp(0.64)))


def coarse_clock(rng: np.random.Generator, shape: Shape) -> Floats:
    """Runs that spread by 3 %, read from a clock that ticks in 5 %."""
    return np.log(np.rint(np.exp(0.03 * rng.standard_normal(shape)) / 0.05) * 0.05)


def slow_runs(rng: np.random.Generator, shape: Shape) -> Floats:
    """A tenth of runs takes twice as long; the others spread by 2 %."""
    return 0.02 * rng.standard_normal(shape) + math.log(2) * (rng.random(shape) < 0.1)


def rare_slow_runs(share: float, sds: float) -> Noise:
    """Runs of which this share is slower by so many SDs of a block (exponential)."""

    def of_run(rng: np.random.Generator, shape: Shape) -> Floats:
        slow = rng.random(shape) < share
        return rng.standard_normal(shape) / math.sqrt(2) + slow * rng.exponential(sds, shape)

    return both_sides(of_run)


def drift(rng: np.random.Generator, shape: Shape) -> Floats:
    """Draw a drift between the sides of three SDs, about the true mean."""
    signs = rng.choice([-1.0, 1.0], (*shape[:2], 1))
    return np.asarray(rng.standard_normal(shape) + 1.5 * signs * np.linspace(-1, 1, shape[2]))


def periodic_load(rng: np.random.Generator, shape: Shape) -> Floats:
    """A load with a period of 3 to 12 blocks and a phase for each outcome."""
    turns = np.arange(shape[2]) / rng.uniform(3, 12, (shape[0], 1, 1))
    wave = np.sin(2 * np.pi * (turns + rng.random((*shape[:2], 1))))
    return np.asarray(rng.standard_normal(shape) + 1.5 * wave)


def level_shift(rng: np.random.Generator, shape: Shape) -> Floats:
    """Half-way through, each outcome moves by two SDs, about the true mean."""
    side = np.where(np.arange(shape[2]) < shape[2] // 2, -1.0, 1.0)
    return np.asarray(rng.standard_normal(shape) + rng.choice([-1.0, 1.0], (*shape[:2], 1)) * side)


# Name -> noise, and the most reports with a false difference; None: no promise.
NOISES: dict[str, tuple[Noise, float | None]] = {
    "normal": (autocorrelated(0.0), 0.06),
    "t with 3 degrees of freedom": (lambda rng, shape: rng.standard_t(3, shape), 0.06),
    "bimodal": (both_sides(bimodal), 0.06),
    "lognormal on both sides": (both_sides(lognormal), 0.06),
    "coarse clock": (both_sides(coarse_clock), 0.06),
    "10 % of runs twice as slow": (both_sides(slow_runs), 0.06),
    "3 % of runs 10 SDs slow": (rare_slow_runs(0.03, 10.0), 0.06),
    "10 % of runs 5 SDs slow": (rare_slow_runs(0.1, 5.0), 0.06),
    "normal, outcomes correlated .9": (autocorrelated(0.0, 0.9), 0.06),
    "drift of three SDs": (drift, 0.06),
    "periodic load": (periodic_load, 0.06),
    "level shift half-way": (level_shift, 0.06),
    "AR(1) .3": (autocorrelated(0.3), 0.06),
    "AR(1) .5": (autocorrelated(0.5), 0.06),
    "AR(1) .7": (autocorrelated(0.7), 0.06),
    "AR(1) .7, outcomes correlated .7": (autocorrelated(0.7, 0.7), 0.15),
    "AR(1) .7, outcomes correlated .9": (autocorrelated(0.7, 0.9), 0.15),
    "AR(1) .7 in 6 of 12 outcomes": (autocorrelated(0.7, outcomes=6), 0.15),
    "AR(1) .7 in 3 of 12 outcomes": (autocorrelated(0.7, outcomes=3), None),
    "lognormal on one side": (about_typical(lognormal), None),
    "exponential on one side": (
        about_typical(lambda rng, shape: rng.standard_exponential(shape)),
        None,
    ),
}
EFFECTS = {"10 %, SD 2 %": (0.1, 0.02), "20 %, SD 5 %": (0.2, 0.05), "40 %, SD 10 %": (0.4, 0.1)}


def draw(name: str, reports: int, blocks: int, outcomes: int = OUTCOMES) -> Floats:
    """Draw shifts with a true mean of 0, the same every time."""
    return 0.02 * NOISES[name][0](np.random.default_rng([blocks, 7]), (reports, outcomes, blocks))


def false_differences(
    name: str,
    reports: int,
    blocks: int,
    outcomes: int = OUTCOMES,
    rule: Callable[[Floats], Reports] = judge,
) -> float:
    """Return the share of reports with any false difference."""
    return float(rule(draw(name, reports, blocks, outcomes)).different.any(axis=-1).mean())


@dataclass(frozen=True)
class Power:
    """Verdicts beyond the margin, against those of t tests. lost: reports that lose any of them."""

    all_differ: float
    one_differs: float
    one_differs_by_t: float
    lost: float


def power(
    effect: float,
    sd: float,
    reports: int,
    blocks: int,
    outcomes: int = OUTCOMES,
    correlation: float = 0.0,
) -> Power:
    """Return the power in normal noise; sd: of the shift of a block."""
    rng, shape = np.random.default_rng([blocks, 8]), (reports, outcomes, blocks)
    noise = sd * autocorrelated(0.0, correlation)(rng, shape)
    every, single = noise + math.log1p(effect), noise.copy()
    single[:, 0] += math.log1p(effect)
    ours, plain = judge(every).beyond, judge_by_t(every).beyond
    ours_single, t_single = (rule(single).beyond[:, 0].mean() for rule in (judge, judge_by_t))
    lost = (plain & ~ours).any(axis=-1).mean()
    shares = (ours.mean() / plain.mean(), ours_single / t_single, t_single, lost)
    return Power(*map(float, shares))


def power_where_t_has_80(reports: int, blocks: int, outcomes: int) -> float:
    """Return how often one requested outcome of so many shows what a t test shows in 80 %."""
    least = statistics_power.minimum_detectable(1.0, blocks)
    shifts = np.random.default_rng([blocks, 9]).normal(least, 1.0, (reports, outcomes, blocks))
    means = autocorrelation.distributions(autocorrelation.fit(shifts))
    return float((means.p()[:, 0] <= ALPHA).mean())


def best_power(effect: float, sd: float, blocks: int, level: float, phi: float = 0.7) -> float:
    """Return the power of the best test of one row alone that keeps its level at this coefficient.

    Neyman and Pearson: of the shifts' direction, independent with the effect against AR(1) without.
    """
    rng, reports = np.random.default_rng(9), 100_000
    null = autocorrelated(phi)(rng, (reports, 1, blocks))[:, 0]
    mean = math.log1p(effect) / sd
    independent = rng.standard_normal((reports, blocks)) + mean
    matrix = phi ** np.abs(np.subtract.outer(np.arange(blocks), np.arange(blocks)))
    inverse = np.linalg.inv(matrix)

    def log_ratio(shifts: Floats) -> Floats:
        unit = shifts / np.linalg.norm(shifts, axis=1, keepdims=True)
        along = np.abs(unit.sum(axis=1)) * mean
        r = np.linspace(1e-3, along.max() + 8, 200)
        log_inside = -((r - along[:, None]) ** 2) / 2 + (blocks - 1) * np.log(r)
        below = (along**2 - blocks * mean**2) / 2
        inside = special.logsumexp(log_inside, axis=1) + below
        squares = np.einsum("ij,jk,ik->i", unit, inverse, unit)
        return np.asarray(inside + blocks / 2 * np.log(squares))

    null_parts, parts = (np.array_split(shifts, 50) for shifts in (null, independent))
    critical = np.quantile(np.concatenate(list(map(log_ratio, null_parts))), 1 - level)
    return float((np.concatenate(list(map(log_ratio, parts))) > critical).mean())
