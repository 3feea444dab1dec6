"""More than two levels over several workloads: average ranks, Friedman's test, and what differs. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.comparison.statistics import significance
from experiments.comparison.statistics.significance import Tested
from experiments.comparison.verdicts import busy
from experiments.comparison.verdicts.decision import ALPHA
from experiments.comparison.verdicts.findings import Comparison
from experiments.config.outcomes import Outcome

MINIMUM_WORKLOADS = 3
MAXIMUM_RANKINGS = 3


@dataclass(frozen=True)
class Ranking:
    """Levels by their average rank over workloads (strata), the best first. Source: Demšar 2006.

    critical: Nemenyi's critical difference. groups: (first, last) of levels that are not shown to differ.
    pairs_different: pairs that Wilcoxon's signed-rank test tells apart after Holm's correction.
    """

    outcome: Outcome
    levels: tuple[str, ...]
    ranks: tuple[float, ...]
    n_workloads: int
    critical: float
    friedman: Tested
    groups: tuple[tuple[int, int], ...]
    pairs_different: int


def rankings(comparison: Comparison, metrics: Iterable[str]) -> tuple[Ranking, ...]:
    """One a metric, if there are more than two levels and at least three strata that have them all."""
    known = {finding.row.metric: finding.outcome for finding in comparison.findings}
    outcomes = {metric: known[metric] for metric in metrics if known[metric].better != "neither"}
    found = []
    for one in outcomes.values():
        table = _table(comparison, one)
        disturbed = comparison.busy and busy.depends(one)
        if not disturbed and len(comparison.levels) > 2 and len(table) >= MINIMUM_WORKLOADS:
            found.append(_ranked(one, comparison.levels, table))
    return tuple(found[:MAXIMUM_RANKINGS])


def _table(comparison: Comparison, one: Outcome) -> list[list[float]]:
    """A row a stratum: the mean of every level, greater is better."""
    found: dict[str, dict[str, list[float]]] = {}
    for value in comparison.values.get(one.metric, ()):
        found.setdefault(value.stratum, {}).setdefault(value.level, []).append(value.value)
    sign = 1.0 if one.better == "higher" else -1.0
    whole = [by_level for by_level in found.values() if len(by_level) == len(comparison.levels)]
    return [[sign * _centre(by_level[level], one.kind) for level in comparison.levels] for by_level in whole]


def _centre(values: Sequence[float], kind: str) -> float:
    positive = kind == "ratio" and min(values) > 0
    return float(np.exp(np.mean(np.log(values))) if positive else np.mean(values))


def _ranked(one: Outcome, levels: Sequence[str], table: Sequence[Sequence[float]]) -> Ranking:
    ranks = significance.average_ranks(table)
    order = [int(at) for at in np.argsort(ranks, kind="stable")]
    ordered = [float(ranks[at]) for at in order]
    friedman = significance.friedman(table)
    critical = significance.critical_difference(len(levels), len(table))
    columns = np.array(table).T
    ps = [significance.signed_rank(columns[b] - columns[a]).p for a, b in itertools.combinations(range(len(levels)), 2)]
    different = sum(p is not None and p < ALPHA for p in significance.holm(ps))
    # without a difference anywhere no pair is looked at
    groups = alike(ordered, critical) if friedman.p < ALPHA else ((0, len(levels) - 1),)
    return Ranking(one, tuple(levels[at] for at in order), tuple(ordered), len(table), critical, friedman, groups, different)


def alike(ranks: Sequence[float], critical: float) -> tuple[tuple[int, int], ...]:
    """Of ascending ranks the longest stretches that span no more than the critical difference; none inside another."""
    found: list[tuple[int, int]] = []
    for first, rank in enumerate(ranks):
        last = max(at for at, other in enumerate(ranks) if other - rank <= critical)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return tuple(found)
