"""Figures of a search in the style of the report: front, history, settings and importance."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

from optuna import importance
from optuna.distributions import CategoricalDistribution
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from experiments.comparison.report import wording
from experiments.comparison.report.canvas import (
    LEVELS,
    SOFT,
    Colours,
    Drawing,
    colours_of,
    frame,
    paneled,
    plain_ticks,
)
from experiments.metrics import outcome
from experiments.sweep import search

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIN_TRIALS = 2
# With fewer trials a forest of random trees ranks chance: six trials ranked the batch size first
# where the framework mattered.
MIN_FOR_IMPORTANCE = 20
MAX_TICKS = 8
# Setting by whose values trials are coloured.
COLOURED = "framework"


@dataclass(frozen=True)
class Axis:
    """An objective's values, by trial, in a unit that reads well."""

    label: str
    values: Mapping[int, float]
    is_smaller_better: bool


def drawings(study: Study) -> tuple[list[Drawing], list[str]]:
    """Return the figures of a search, and a line for each that is not drawn."""
    trials = [trial for trial in study.get_trials() if search.has_finite_values(trial)]
    if len(trials) < MIN_TRIALS:
        return [], [f"All figures: {len(trials)} finished trials; {MIN_TRIALS} are needed"]
    axes, colours = axes_of(study, trials), _colours(trials)
    front = {trial.number for trial in search.best(study)}
    panels = list(_panels(trials, axes, front, colours))
    drawn = [
        drawing
        for name, title, caption, functions in panels
        for drawing in paneled(name, title, caption, colours, functions)
    ]
    if len(trials) < MIN_FOR_IMPORTANCE:
        needed = f"{MIN_FOR_IMPORTANCE} are needed to tell settings from chance"
        return drawn, [f"Importance of settings: {len(trials)} finished trials; {needed}"]
    try:
        drawn += _importance(study, axes)
    except (ValueError, RuntimeError, ZeroDivisionError) as error:
        return drawn, [f"Importance of settings: {' '.join(str(error).split())[:120]}"]
    return drawn, []


def axes_of(study: Study, trials: Sequence[FrozenTrial]) -> list[Axis]:
    axes = []
    names = study.metric_names or ["objective"] * len(study.directions)
    for at, (name, direction) in enumerate(zip(names, study.directions, strict=True)):
        metric = outcome(name)
        factor, unit = wording.scale(metric.unit, [trial.values[at] for trial in trials])
        values = {trial.number: trial.values[at] / factor for trial in trials}
        label = f"{metric.label}, {unit}" if unit else metric.label
        axes.append(Axis(label, values, direction == StudyDirection.MINIMIZE))
    return axes


Panel = Callable[["Axes"], None]


def _panels(
    trials: Sequence[FrozenTrial], axes: Sequence[Axis], front: set[int], colours: Colours
) -> Iterator[tuple[str, str, str, list[Panel]]]:
    """Yield name, title, caption and panels of each figure whose panels show trials."""
    draw = partial(_scatter, trials, front, colours)
    best = "Filled points: the best trials"
    best += ", which no other trial surpasses in all objectives." if len(axes) > 1 else "."
    pairs: list[Panel] = [partial(draw, x, y) for x, y in combinations(axes, 2)]
    yield "sweep-front", "Objectives against each other", best, pairs
    order = Axis("trial", {trial.number: float(trial.number) for trial in trials}, False)
    history: list[Panel] = [partial(draw, order, axis, history=True) for axis in axes]
    yield (
        "sweep-history",
        "Trials in their order",
        f"The line is the best value so far. {best}",
        history,
    )
    settings: list[Panel] = [
        partial(_setting, trials, front, colours, name, axis)
        for axis in axes
        for name in trials[0].distributions
    ]
    text = "The other settings differ too: a panel does not show the effect of one setting."
    yield "sweep-settings", "Each setting", f"{text} {best}", settings


def _scatter(
    trials: Sequence[FrozenTrial],
    front: set[int],
    colours: Colours,
    x: Axis,
    y: Axis,
    axes: Axes,
    *,
    history: bool = False,
) -> None:
    frame(axes, y.label.partition(",")[0], "", y.label.rpartition(", ")[2])
    numbers = sorted(y.values)
    if history:
        better = min if y.is_smaller_better else max
        so_far = [
            better(y.values[number] for number in numbers[: at + 1]) for at in range(len(numbers))
        ]
        axes.step(numbers, so_far, where="post", color=SOFT, linewidth=0.8)
    for trial in trials:
        _point(axes, trial, front, colours, x.values[trial.number], y.values[trial.number])
    axes.set_xlabel(x.label)
    axes.margins(x=0.06)  # the first and the last point are not cut
    plain_ticks(axes.yaxis)
    if history:
        step = math.ceil((numbers[-1] + 1) / MAX_TICKS)
        axes.set_xticks(range(0, numbers[-1] + 1, step))
    else:
        plain_ticks(axes.xaxis)


def _setting(
    trials: Sequence[FrozenTrial],
    front: set[int],
    colours: Colours,
    name: str,
    axis: Axis,
    axes: Axes,
) -> None:
    frame(axes, axis.label.partition(",")[0], "", axis.label.rpartition(", ")[2])
    kind: Any = trials[0].distributions[name]
    tried = [trial for trial in trials if name in trial.params]
    if isinstance(kind, CategoricalDistribution):
        choices = [str(choice) for choice in kind.choices]
        axes.set_xticks(range(len(choices)), choices)
        places = {trial.number: choices.index(str(trial.params[name])) for trial in tried}
        axes.set_xlim(-0.5, len(choices) - 0.5)
    else:
        places = {trial.number: trial.params[name] for trial in tried}
        axes.set_xscale("log" if kind.log else "linear")
        axes.margins(x=0.06)
    for trial in tried:
        number = trial.number
        _point(axes, trial, front, colours, places[number], axis.values[number])
    axes.set_xlabel(name)
    plain_ticks(axes.yaxis)
    if not isinstance(kind, CategoricalDistribution):
        plain_ticks(axes.xaxis)


def _point(
    axes: Axes, trial: FrozenTrial, front: set[int], colours: Colours, x: float, y: float
) -> None:
    colour = colours[_level(trial)]
    filled = colour if trial.number in front else "none"
    axes.plot(x, y, "o", color=colour, markerfacecolor=filled, markersize=5, markeredgewidth=1.1)


def _importance(study: Study, axes: Sequence[Axis]) -> list[Drawing]:
    def bars(shares: Mapping[str, float], axis: Axis, canvas: Axes) -> None:
        frame(canvas, axis.label.partition(",")[0], "", "share")
        canvas.bar(list(shares), list(shares.values()), width=0.5, color=LEVELS[0])
        canvas.set_ylim(0, 1)

    panels = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for at, axis in enumerate(axes):
            shares = importance.get_param_importances(study, target=partial(_value, at))
            panels.append(partial(bars, shares, axis))
    caption = (
        "Shares of the variation between trials that a forest of random trees explains by each "
        "setting (fANOVA)."
    )
    colours = {"share of the variation": LEVELS[0]}
    return paneled("sweep-importance", "Importance of settings", caption, colours, panels)


def _colours(trials: Sequence[FrozenTrial]) -> Colours:
    return colours_of(list(dict.fromkeys(sorted(_level(trial) for trial in trials))))


def _level(trial: FrozenTrial) -> str:
    return str(trial.params.get(COLOURED, "trial"))


def _value(position: int, trial: FrozenTrial) -> float:
    return float(trial.values[position])
