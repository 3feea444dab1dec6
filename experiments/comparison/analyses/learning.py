"""Agreement of learning curves: validation after every epoch, block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.canvas import Colours, Drawing, frame, paneled
from experiments.comparison.report.sections import Cell, Header, Line, Section
from experiments.comparison.report.tables import number
from experiments.comparison.runs.pairing import natural
from experiments.comparison.runs.raw import BY_EPOCH, RawRun
from experiments.comparison.runs.warning import ComparisonWarning, WarningCode
from experiments.comparison.statistics.estimates import (
    MINIMUM_VALUES,
    Estimate,
    Floats,
    trimmed_mean,
)
from experiments.comparison.verdicts.decision import ALPHA, MINIMUM_BLOCKS
from experiments.metrics import TOTAL, outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CAPTION = (
    "Validation after each epoch, compared block by block. Alike: an equivalence test succeeds in "
    "every epoch. The difference is that of the epoch in which the curves are farthest apart; its "
    "interval allows for the number of epochs (Bonferroni). An answer needs six blocks."
)
TIMES = (
    "Seconds of training, without validation, until the first epoch with this accuracy ended. The "
    "median is the time by which half of all runs had reached it; a run that ended without it "
    "counts as never reaching it. There is no verdict: leaving such runs out would favour the side "
    "that fails."
)
# level → block → values by epoch
Curves = dict[str, dict[str, Floats]]


@dataclass(frozen=True)
class Agreement:
    """Level b against the baseline a, in the epoch in which they are furthest apart.

    An epoch in which they differ beyond chance goes before all others.

    Attributes:
        epoch: None below three blocks.
        estimate: mean of b - a over blocks with its interval, widened for the number of epochs
            (Bonferroni); None below three blocks.
        alike: True if the curves are shown to stay within the margin (an equivalence test in
            every epoch, all of which have to succeed), False if in any epoch a difference is
            shown and the estimate exceeds the margin; None if neither is shown, as below six
            blocks.
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

    @property
    def difference(self) -> str:
        """Difference b - a in its epoch, with its interval."""
        shift = self.estimate
        if shift is None:
            return wording.NONE
        low, high = wording.outwards(shift.low, shift.high, decimals=3)
        return f"{shift.value:+.3f} ({low:+.3f} to {high:+.3f})".replace("-", wording.MINUS)


def curves(raw: Sequence[RawRun]) -> dict[tuple[str, str], Curves]:
    """Return the curves of every metric and stratum that has any."""
    results: dict[tuple[str, str], Curves] = {}
    for metric in BY_EPOCH:
        for run in sorted(raw, key=lambda run: natural(run.stratum)):
            if len(run.epochs.get(metric, ())) > 1:
                by_level = results.setdefault((metric, run.stratum), {})
                by_level.setdefault(run.level, {})[run.block] = run.epochs[metric]
    return results


def agreements(raw: Sequence[RawRun], baseline: str) -> list[Agreement]:
    """Compare every level with the baseline, by accuracy if there is one, else by loss."""
    by_place, results = curves(raw), []
    metric = next(iter(by_place), ("", ""))[0]
    for (name, stratum), levels in by_place.items():
        reference = levels.pop(baseline, {})
        for b, runs in levels.items():
            blocks = [block for block in reference if block in runs]
            if name == metric and len(blocks) > 1:
                both = [(reference[block], runs[block]) for block in blocks]
                results.append(_agreement(metric, stratum, baseline, b, both))
    return results


def _agreement(
    metric: str, stratum: str, a: str, b: str, both: Sequence[tuple[Floats, Floats]]
) -> Agreement:
    count, epochs = len(both), min(len(side) for block in both for side in block)
    margin = outcome(metric).margin or 0.0
    if count < MINIMUM_VALUES:
        return Agreement(metric, stratum, a, b, count, epochs, None, None, margin, None)
    shifts = np.array([second[:epochs] - first[:epochs] for first, second in both]).T
    means = [trimmed_mean(by_block, 1 - ALPHA / epochs) for by_block in shifts]
    apart = [
        epoch
        for epoch, mean in enumerate(means)
        if abs(mean.value) > margin and not mean.low <= 0 <= mean.high
    ]
    worst = max(apart or range(epochs), key=lambda epoch: abs(means[epoch].value))
    inner = [trimmed_mean(by_block, 1 - 2 * ALPHA) for by_block in shifts]  # two one-sided tests
    is_within = all(-margin < mean.low and mean.high < margin for mean in inner)
    alike = not apart if (apart or is_within) and count >= MINIMUM_BLOCKS else None
    return Agreement(metric, stratum, a, b, count, epochs, worst + 1, means[worst], margin, alike)


def warnings(evidence: Evidence) -> list[ComparisonWarning]:
    """Return a warning for each level that learns differently."""
    return [
        ComparisonWarning(
            WarningCode.LEARNING_DIFFERS,
            f"LEARNING DIFFERS, {agreement.b} against {agreement.a}: "
            f"{outcome(agreement.metric).label} in epoch {agreement.epoch} by "
            f"{agreement.difference}, margin ±{agreement.margin:g}"
            + (f" [{agreement.stratum}]" if agreement.stratum else ""),
        )
        for agreement in agreements(evidence.raw, evidence.comparison.baseline)
        if agreement.alike is False
    ]


def table(evidence: Evidence) -> list[Section]:
    """Return a line for each level and stratum."""
    rows: list[Line] = []
    for agreement in agreements(evidence.raw, evidence.comparison.baseline):
        answer = {
            True: Cell("alike", "alike", f"within ±{agreement.margin:g} in every epoch"),
            False: Cell("different", "worse"),
            None: Cell("not shown", "open"),
        }[agreement.alike]
        rows.append(
            (
                *(agreement.b, agreement.stratum, outcome(agreement.metric).label),
                *(str(agreement.n_epochs), str(agreement.n_blocks)),
                wording.NONE if agreement.epoch is None else str(agreement.epoch),
                *(agreement.difference, answer),
            )
        )
    numbers = map(number, ("epochs", "blocks", "farthest in epoch"))
    header: Header = (
        *(evidence.comparison.factor, "stratum", "outcome"),
        *numbers,
        *("difference (95 % CI)", "curves"),
    )
    return [Section("Do they learn alike?", CAPTION, header, rows)] if rows else []


def figure(evidence: Evidence) -> list[Drawing]:
    """Return learning curves with bands over blocks."""
    colours = evidence.colours
    panels = [
        partial(_panel, levels=levels, colours=colours, metric=metric, stratum=stratum)
        for (metric, stratum), levels in curves(evidence.raw).items()
    ]
    return paneled(
        "learning",
        "Learning curves",
        "After every epoch: the mean over blocks and, around it, from the least to the greatest "
        f"run; {evidence.shown_runs} are shown.",
        colours,
        panels,
    )


def _panel(
    axes: Axes,
    levels: Mapping[str, Mapping[str, Floats]],
    colours: Colours,
    metric: str,
    stratum: str,
) -> None:
    for level, by_block in levels.items():
        length, colour = min(map(len, by_block.values())), colours[level]
        values = np.array([curve[:length] for curve in by_block.values()])
        epochs = np.arange(1, length + 1)
        axes.fill_between(epochs, values.min(0), values.max(0), color=colour, alpha=0.18)
        axes.plot(epochs, values.mean(0), color=colour, marker="o", markersize=2)
    axes.locator_params(axis="x", nbins=5, integer=True)
    axes.set_xlabel("epoch")
    frame(axes, outcome(metric).label, stratum, outcome(metric).unit)


def times_to_accuracy(evidence: Evidence) -> list[Section]:
    """Return how many runs reached each threshold, and when half of them had."""
    comparison, rows = evidence.comparison, list[Line]()
    ends = {end.sequence: end for end in comparison.unjudged.get(TOTAL, ())}
    if not ends:  # the runs that never reached it are not known
        return []
    for percent, values in comparison.times_to_accuracy.items():
        arrived = {value.sequence: value.value for value in values}
        runs = {**ends, **{value.sequence: value for value in values}}.values()
        for stratum in sorted({run.stratum for run in runs}, key=natural):
            name = f"{percent} %" + (f" [{stratum}]" if stratum else "")
            for level in comparison.levels:
                times = sorted(
                    arrived.get(run.sequence, np.inf)
                    for run in runs
                    if (run.level, run.stratum) == (level, stratum)
                )
                if times:
                    reached = f"{np.isfinite(times).sum()} of {len(times)}"
                    median = times[(len(times) - 1) // 2]
                    text = f"{median:.3g} s" if np.isfinite(median) else "never"
                    rows.append((name, level, reached, text))
    header: Header = ("accuracy", "level", "runs that reached it", number("median time"))
    return [Section("Time to accuracy", TIMES, header, rows)] if rows else []
