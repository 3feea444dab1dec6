"""What more workers bring: the speed-up beside the ideal, what the exchange costs, and what was proven before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.comparison.report import wording
from experiments.comparison.report.sections import Section
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.findings import Comparison
from experiments.comparison.verdicts.workers import Gain, gains, last_check

SHARES = {
    "strong": "the batch is shared among the workers",
    "weak": "each worker has a whole batch",
}
ERROR, LIMIT = "check/weights_error", "check/weights_error_limit"
Groups = Mapping[str, tuple[int, str]]


def sections(comparison: Comparison, groups: Groups, scaling: str) -> list[Section]:
    """Return speed-up and overhead, where any group has an estimate, and the proof of each.

    groups: level -> workers and compression.
    """
    found = gains(comparison)
    told = [_speedups(found, scaling), _overheads(found)] if found else []
    return [*told, *_proofs(comparison, groups)]


def _speedups(found: Sequence[Gain], scaling: str) -> Section:
    caption = (
        f"Images a second of all workers together over those of one, {scaling} scaling: {SHARES[scaling]}. Efficiency is the "
        "speed-up over the ideal, which is the number of workers. Workers on one machine share its memory and caches."
    )
    header = ("network", "workers", "speed-up", "95 % interval", "ideal", "efficiency", "95 % interval")
    lines = [
        (
            *(one.stratum, one.level, f"{one.speedup.value:.2f}×", wording.interval(one.finding), f"{one.workers}×"),
            *(_percent(one.efficiency.value), _interval(one.efficiency)),
        )
        for one in found
    ]
    return Section("Speed-up by workers", caption, header, lines)


def _overheads(found: Sequence[Gain]) -> Section:
    caption = (
        "Overhead is the published formula, 1 − (steps a second of k workers) / (steps a second of one), of equal batches a "
        "worker; with a shared batch images take the place of steps. Exposed is measured: by how much the median step is longer "
        "than one after which no gradients are exchanged, in the same cell, as the first worker sees it; waiting for a slower "
        "worker is part of it. Beside each other is the rest, 1 − (1 − overhead) / (1 − exposed): what workers lose "
        "that share a machine, or have fewer images each, without any exchange. Below zero: nothing is lost."
    )
    header = (
        *("network", "workers", "overhead", "95 % interval", "exposed, ms a step", "exposed"),
        *("95 % interval", "beside each other"),
    )
    lines = [(*(one.stratum, one.level, _percent(one.overhead.value), _interval(one.overhead)), *_exposed(one)) for one in found]
    return Section("Communication overhead", caption, header, lines)


def _exposed(one: Gain) -> tuple[str, str, str, str]:
    if one.exposed is None or one.exposed_seconds is None:
        return (wording.NONE,) * 4
    rest = 1 - (1 - one.overhead.value) / (1 - one.exposed.value)
    return f"{1_000 * one.exposed_seconds:.2f} ms", _percent(one.exposed.value), _interval(one.exposed), _percent(rest)


def _proofs(comparison: Comparison, groups: Groups) -> list[Section]:
    """Nothing where no run says what was proven."""
    caption = (
        "Before anything is measured the workers of a group and one worker with all of their images train a few steps in "
        "float64. By how much the weights differ then: exact averaging as a share of the largest weight, compression as a share "
        "of the way that the weights have made (L2 norms), of which it may lose so much by its own arithmetic. A group above "
        "its limit is not measured."
    )
    limits = {(one.stratum, one.level): one.value for one in last_check(comparison, LIMIT)}
    lines = [
        (one.stratum, one.level, groups[one.level][1], f"{one.value:.1e}", f"{limits[one.stratum, one.level]:.1e}")
        for one in last_check(comparison, ERROR)
    ]
    header = ("network", "workers", "compression", "weights differ by", "at most")
    return [Section("Workers against one, before measuring", caption, header, lines)] if lines else []


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %".replace("-", wording.MINUS)


def _interval(share: Estimate) -> str:
    if not abs(share.low) < 10 or not abs(share.high) < 10:  # of one block: unbounded
        return wording.NONE
    low, high = wording.outwards(share.low, share.high, decimals=3)
    return f"{_percent(low)} to {_percent(high)}"
