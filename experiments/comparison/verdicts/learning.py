"""Whether both sides learn alike: validation after every epoch, block by block, before anybody speaks of speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.comparison.runs.pairing import natural
from experiments.comparison.runs.raw import BY_EPOCH, RawRun
from experiments.comparison.statistics.estimates import MINIMUM_VALUES, Estimate, Floats
from experiments.comparison.verdicts.decision import ALPHA, MINIMUM_BLOCKS, Decision, paired
from experiments.config.outcomes import outcome

_DIFFERENT = (Decision.DIFFERENT, Decision.SIZE_OPEN)


@dataclass(frozen=True)
class Agreement:
    """b against the baseline a, in the epoch in which they are furthest apart beyond chance, or else furthest apart at all.

    estimate: mean of b - a over blocks with its interval, widened for the number of epochs (Bonferroni);
    None below three blocks, as is the epoch.
    alike: True where the curves are shown to stay within the margin (an equivalence test in every epoch, all of which have
    to succeed), False where in any epoch a difference is shown and the estimate exceeds the margin; None where neither is
    shown, as below six blocks.
    """

    metric: str
    stratum: str
    a: str
    b: str
    n_blocks: int
    n_epochs: int
    epoch: int | None
    estimate: Estimate | None
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
    margin = outcome(metric).margin or 0.0
    if len(blocks) < MINIMUM_VALUES:
        return Agreement(metric, stratum, a, b, len(blocks), epochs, None, None, margin, None)
    shifts = np.array([of_b[block][:epochs] - of_a[block][:epochs] for block in blocks])
    effects = [paired(shifts[:, epoch], margin, 1 - ALPHA / epochs) for epoch in range(epochs)]
    apart = [at for at, one in enumerate(effects) if one.decision in _DIFFERENT and abs(one.estimate.value) > margin]
    worst = max(apart or range(epochs), key=lambda at: abs(effects[at].estimate.value))
    equivalent = all(one.equivalent for one in effects)
    alike = None if len(blocks) < MINIMUM_BLOCKS or not (apart or equivalent) else not apart
    return Agreement(metric, stratum, a, b, len(blocks), epochs, worst + 1, effects[worst].estimate, margin, alike)
