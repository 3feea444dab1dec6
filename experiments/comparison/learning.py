"""Whether both sides learn alike: validation after every epoch, block by block, before anybody speaks of speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.comparison import estimates
from experiments.comparison.estimates import Estimate
from experiments.comparison.findings import ALPHA, LEAST_BLOCKS
from experiments.comparison.gates import natural
from experiments.comparison.outcomes import outcome
from experiments.comparison.raw import BY_EPOCH, Floats, RawRun


@dataclass(frozen=True)
class Agreement:
    """b against the baseline a, in the epoch in which they are furthest apart beyond chance, or else furthest apart at all.

    estimate: mean of b - a over blocks with its interval, widened for the number of epochs (Bonferroni).
    alike: None below six blocks.
    """

    metric: str
    stratum: str
    a: str
    b: str
    n_blocks: int
    n_epochs: int
    epoch: int
    estimate: Estimate
    margin: float
    alike: bool | None


def of_runs(raw: Sequence[RawRun], metric: str, stratum: str) -> dict[str, dict[str, Floats]]:
    """Level -> block -> values by epoch."""
    found: dict[str, dict[str, Floats]] = {}
    for run in raw:
        if run.stratum == stratum and len(run.epochs.get(metric, ())) > 1:
            found.setdefault(run.level, {})[run.block] = run.epochs[metric]
    return found


def shown_curves(raw: Sequence[RawRun]) -> list[tuple[str, str]]:
    """Metric and stratum of everything there are curves of."""
    strata = sorted({run.stratum for run in raw}, key=natural)
    return [(metric, stratum) for metric in BY_EPOCH for stratum in strata if of_runs(raw, metric, stratum)]


def agreements(raw: Sequence[RawRun], baseline: str) -> list[Agreement]:
    """Every level against the baseline in every stratum, by accuracy where there is one, else by loss."""
    told = shown_curves(raw)
    metric = next((metric for metric in BY_EPOCH if any(metric == one for one, _ in told)), "")
    found = []
    for _, stratum in (one for one in told if one[0] == metric):
        levels = of_runs(raw, metric, stratum)
        reference = levels.pop(baseline, {})
        found += [one for b, runs in levels.items() if (one := _agreement(metric, stratum, baseline, reference, b, runs))]
    return found


def _agreement(
    metric: str, stratum: str, a: str, of_a: Mapping[str, Floats], b: str, of_b: Mapping[str, Floats]
) -> Agreement | None:
    blocks = [block for block in of_a if block in of_b]
    epochs = min((len(side[block]) for block in blocks for side in (of_a, of_b)), default=0)
    if len(blocks) < 2 or not epochs:
        return None
    shifts = np.array([of_b[block][:epochs] - of_a[block][:epochs] for block in blocks])
    means = [estimates.mean(shifts[:, epoch], 1 - ALPHA / epochs) for epoch in range(epochs)]
    margin = outcome(metric).margin or 0.0
    apart = [at for at, one in enumerate(means) if abs(one.value) > margin and (one.low > 0 or one.high < 0)]
    worst = max(apart or range(epochs), key=lambda at: abs(means[at].value))
    alike = None if len(blocks) < LEAST_BLOCKS else not apart
    return Agreement(metric, stratum, a, b, len(blocks), epochs, worst + 1, means[worst], margin, alike)


def sentences(found: Sequence[Agreement]) -> tuple[list[str], list[str]]:
    """What must be said before anything else, and what may be said."""
    loud, plain = [], []
    for one in found:
        where = f" [{one.stratum}]" if one.stratum else ""
        label, shift = outcome(one.metric).label, one.estimate
        at = f"in epoch {one.epoch} by {shift.value:+.3f} ({shift.low:+.3f} to {shift.high:+.3f})"
        who = f"{one.b} against {one.a}{where}"
        if one.alike is None:
            plain.append(f"Learning curves, {who}: {one.n_blocks} blocks are too few to say whether they overlap; furthest {at}.")
        elif one.alike:
            plain.append(
                f"Learning curves, {who}: they overlap. Over {one.n_epochs} epochs and {one.n_blocks} blocks the {label} "
                f"nowhere differs by more than ±{one.margin:g} beyond chance; furthest {at}."
            )
        else:
            loud.append(f"LEARNING DIFFERS, {who}: the {label} differs {at}: read the times with that in mind")
    return loud, plain
