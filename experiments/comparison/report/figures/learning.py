"""Learning curves with bands over blocks, and the share of runs that have reached an accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from experiments.comparison.report import wording
from experiments.comparison.report.figures import tips
from experiments.comparison.report.figures.canvas import (
    Colours,
    Drawing,
    Scene,
    count_ticks,
    frame,
    paneled,
    plain_ticks,
    unit_of,
)
from experiments.comparison.report.figures.tips import Tip
from experiments.comparison.statistics.estimates import Floats
from experiments.comparison.verdicts import learning, survival
from experiments.comparison.verdicts.survival import Reached
from experiments.config.outcomes import outcome


def curves(scene: Scene) -> Drawing | None:
    panels = [
        partial(_curves, runs=learning.of_runs(scene.raw, metric, stratum), colours=scene.colours, metric=metric, stratum=stratum)
        for metric, stratum in learning.shown_curves(scene.raw)
    ]
    caption = (
        f"After every epoch: the mean over blocks and, around it, from the least to the greatest run; {scene.of_runs} are shown."
    )
    return paneled("learning", "Learning curves", caption, scene.colours, panels, panel_inches=2.3)


def _curves(axes: Axes, runs: Mapping[str, Mapping[str, Floats]], colours: Colours, metric: str, stratum: str) -> None:
    for level, of_blocks in runs.items():
        length = min(map(len, of_blocks.values()))
        values, epochs = np.array([one[:length] for one in of_blocks.values()]), np.arange(1, length + 1)
        axes.fill_between(epochs, values.min(0), values.max(0), color=colours[level], alpha=0.18, linewidth=0)
        means, marker = values.mean(0), "o" if length < 20 else ""
        (line,) = axes.plot(epochs, means, color=colours[level], linewidth=1.5, marker=marker, markersize=3)
        told = [Tip(f"{level}, epoch {at}: {wording.quantity(mean, outcome(metric))}") for at, mean in enumerate(means, 1)]
        tips.put(line, told if marker else [Tip(level)])
    count_ticks(axes.xaxis)
    axes.set_xlabel("epoch")
    frame(axes, outcome(metric).label, stratum, unit_of(outcome(metric)))


def times(scene: Scene) -> Drawing | None:
    found = survival.reached(scene.comparison)
    panels = [
        partial(
            _steps,
            sides=[one for one in found if (one.percent, one.stratum) == (percent, stratum)],
            colours=scene.colours,
            title=f"{percent} % accuracy",
            stratum=stratum,
        )
        for percent, stratum in survival.thresholds(found)
    ]
    caption = (
        "The share of all runs that have reached an accuracy, by seconds of training without validation. "
        "A tick is a run that ended without: it stays among those that have not reached it. The table’s median is where a line "
        "reaches one half."
    )
    return paneled("times_to_accuracy", "Time to accuracy", caption, scene.colours, panels, panel_inches=2.1)


def _steps(axes: Axes, sides: Sequence[Reached], colours: Colours, title: str, stratum: str) -> None:
    end = max(float(one.seconds.max()) for one in sides)
    for one in sides:
        xs, shares = ([0.0, *values] for values in one.steps)
        axes.step([*xs, end], [*shares, shares[-1]], where="post", color=colours[one.level], linewidth=1.5)
        without = one.seconds[~one.reached]
        at = [shares[int(np.searchsorted(xs, second, side="right")) - 1] for second in without]
        axes.plot(without, at, marker="|", markersize=8, linestyle="", color=colours[one.level])
    axes.set_ylim(-0.03, 1.05)
    axes.set_xlabel("time of training, s")
    frame(axes, title, stratum, "share of runs")
    plain_ticks(axes.yaxis, (0, 0.25, 0.5, 0.75, 1))
