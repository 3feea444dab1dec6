"""Throughput against memory: which levels no other beats in both. Pure functions of run-level values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.comparison.runs.pairing import natural
from experiments.comparison.statistics import estimates
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.findings import Comparison
from experiments.config.outcomes import Outcome, outcome

RATES = (
    *("train/images_per_second", "train/examples_per_second"),
    *("features/images_per_second", "inference/examples_per_second"),
)
MEMORIES = ("memory/peak_device_bytes", "memory/peak_rss_bytes")


@dataclass(frozen=True)
class Spot:
    """One level: geometric means over runs with 95 % t intervals. `on_front`: no other level is faster with no more memory."""

    level: str
    memory: Estimate
    rate: Estimate
    on_front: bool


@dataclass(frozen=True)
class Tradeoff:
    """The levels of one stratum."""

    stratum: str
    memory: Outcome
    rate: Outcome
    spots: tuple[Spot, ...]


def tradeoffs(comparison: Comparison) -> tuple[Tradeoff, ...]:
    """One a stratum in which at least two levels have both; the device's memory where all those levels tell it."""
    rate = next((metric for metric in RATES if comparison.values.get(metric)), "")
    found = []
    for stratum in sorted({value.stratum for value in comparison.values.get(rate, ())}, key=natural):
        rates = _means(comparison, rate, stratum)
        memories = [(metric, _means(comparison, metric, stratum)) for metric in MEMORIES]
        metric, memory = max(memories, key=lambda one: len(one[1].keys() & rates.keys()))
        both = {level: (memory[level], rates[level]) for level in comparison.levels if level in memory and level in rates}
        if len(both) > 1:
            found.append(Tradeoff(stratum, outcome(metric), outcome(rate), _spots(both)))
    return tuple(found)


def _spots(both: dict[str, tuple[Estimate, Estimate]]) -> tuple[Spot, ...]:
    front = on_front([(memory.value, rate.value) for memory, rate in both.values()])
    return tuple(Spot(level, memory, rate, top) for (level, (memory, rate)), top in zip(both.items(), front, strict=True))


def on_front(places: Sequence[tuple[float, float]]) -> list[bool]:
    """Of (cost, gain) pairs, which no other one beats: no greater cost, no smaller gain, and better in one of them."""
    return [
        not any(cost <= own_cost and gain >= own_gain and (cost, gain) != (own_cost, own_gain) for cost, gain in places)
        for own_cost, own_gain in places
    ]


def _means(comparison: Comparison, metric: str, stratum: str) -> dict[str, Estimate]:
    by_level: dict[str, list[float]] = {}
    for value in comparison.values.get(metric, ()):
        if value.stratum == stratum and value.value > 0:
            by_level.setdefault(value.level, []).append(value.value)
    return {level: estimates.exponential(estimates.mean(np.log(values))) for level, values in by_level.items()}
