"""Whether both sides learn alike: validation after every epoch, block by block, before anybody speaks of speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.canvas import Colours, Drawing, at_most, frame, paneled, unit_of
from experiments.comparison.report.sections import Section
from experiments.comparison.runs.pairing import natural
from experiments.comparison.runs.raw import BY_EPOCH, RawRun
from experiments.comparison.statistics.estimates import MINIMUM_VALUES, Estimate, Floats
from experiments.comparison.verdicts.decision import ALPHA, MINIMUM_BLOCKS, Decision, paired
from experiments.metrics import outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    return [
        (metric, stratum)
        for metric in BY_EPOCH
        for stratum in strata
        if of_runs(raw, metric, stratum)
    ]


def agreements(raw: Sequence[RawRun], baseline: str) -> list[Agreement]:
    """Every level against the baseline in every stratum, by accuracy where there is one, else by loss."""
    told = shown_curves(raw)
    metric = next((metric for metric in BY_EPOCH if any(metric == one for one, _ in told)), "")
    found = []
    for _, stratum in (one for one in told if one[0] == metric):
        levels = of_runs(raw, metric, stratum)
        reference = levels.pop(baseline, {})
        found += [
            one
            for b, runs in levels.items()
            if (one := _agreement(metric, stratum, baseline, reference, b, runs))
        ]
    return found


def _agreement(
    metric: str,
    stratum: str,
    a: str,
    of_a: Mapping[str, Floats],
    b: str,
    of_b: Mapping[str, Floats],
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
    apart = [
        at
        for at, one in enumerate(effects)
        if one.decision in _DIFFERENT and abs(one.estimate.value) > margin
    ]
    worst = max(apart or range(epochs), key=lambda at: abs(effects[at].estimate.value))
    equivalent = all(one.equivalent for one in effects)
    alike = None if len(blocks) < MINIMUM_BLOCKS or not (apart or equivalent) else not apart
    return Agreement(
        metric,
        stratum,
        a,
        b,
        len(blocks),
        epochs,
        worst + 1,
        effects[worst].estimate,
        margin,
        alike,
    )


def warnings(evidence: Evidence) -> list[str]:
    """Return a line for each level that learns differently."""
    found = agreements(evidence.raw, evidence.comparison.baseline)
    return [
        f"LEARNING DIFFERS, {_who(one)}: the {outcome(one.metric).label} differs {_where(one)}: read the times with that in mind"
        for one in found
        if one.alike is False
    ]


def sentences(evidence: Evidence) -> list[str]:
    """Return what is said of each level that is not shown to learn differently."""
    found = agreements(evidence.raw, evidence.comparison.baseline)
    return [
        f"Learning curves, {_who(one)}: {_sentence(one)}" for one in found if one.alike is not False
    ]


def _sentence(one: Agreement) -> str:
    shift = one.estimate
    if shift is None:
        return f"{one.n_blocks} blocks are too few to say whether they overlap."
    furthest = (
        f"furthest {_where(one)}"
        if shift.low < shift.high or shift.value
        else "identical in every epoch"
    )
    if one.alike:
        return (
            f"they overlap. In each of {one.n_epochs} epochs the {outcome(one.metric).label} is equivalent "
            f"within ±{one.margin:g} (TOST, {one.n_blocks} blocks); {furthest}."
        )
    few = one.n_blocks < MINIMUM_BLOCKS
    why = (
        "are too few to say whether they overlap"
        if few
        else f"do not show whether they overlap within ±{one.margin:g}"
    )
    return f"{one.n_blocks} blocks {why}; {furthest}."


def _who(one: Agreement) -> str:
    return f"{one.b} against {one.a}" + (f" [{one.stratum}]" if one.stratum else "")


def _where(one: Agreement) -> str:
    """Return the epoch in which they are furthest apart, and how far."""
    shift = one.estimate
    assert shift is not None
    low, high = wording.outwards(shift.low, shift.high, decimals=3)
    return f"in epoch {one.epoch} by {shift.value:+.3f} ({low:+.3f} to {high:+.3f})".replace(
        "-", wording.MINUS
    )


def heading(evidence: Evidence) -> list[Section]:
    """Return what stands over the curves, before anything is said of speed."""
    told = sentences(evidence)
    return [Section("Do they learn alike?", " ".join(told), (), ())] if told else []


def figure(evidence: Evidence) -> Drawing | None:
    """Return learning curves with bands over blocks."""
    raw, colours = evidence.raw, evidence.colours
    panels = [
        partial(
            _curves,
            runs=of_runs(raw, metric, stratum),
            colours=colours,
            metric=metric,
            stratum=stratum,
        )
        for metric, stratum in shown_curves(raw)
    ]
    caption = (
        "After every epoch: the mean over blocks and, around it, from the least to the greatest run; "
        f"{evidence.of_runs} are shown."
    )
    return paneled("learning", "Learning curves", caption, colours, panels, panel_inches=2.3)


def _curves(
    axes: Axes,
    runs: Mapping[str, Mapping[str, Floats]],
    colours: Colours,
    metric: str,
    stratum: str,
) -> None:
    for level, of_blocks in runs.items():
        length = min(map(len, of_blocks.values()))
        values, epochs = (
            np.array([one[:length] for one in of_blocks.values()]),
            np.arange(1, length + 1),
        )
        axes.fill_between(
            epochs, values.min(0), values.max(0), color=colours[level], alpha=0.18, linewidth=0
        )
        marker = "o" if length < 20 else ""
        axes.plot(
            epochs, values.mean(0), color=colours[level], linewidth=1.5, marker=marker, markersize=3
        )
    at_most(axes.xaxis, 5, whole=True)
    axes.set_xlabel("epoch")
    frame(axes, outcome(metric).label, stratum, unit_of(outcome(metric)))


ANALYSIS = Analysis(
    warnings={20: warnings},
    sentences={30: sentences},
    tables={-10: heading},
    figures={-10: figure},
)
