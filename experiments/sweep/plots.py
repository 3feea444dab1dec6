"""Figures of a search by Optuna: front, history, settings and importance."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import Any

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import matplotlib as visualization

from experiments.comparison.report import wording
from experiments.comparison.report.canvas import Figure, draw_with_pyplot
from experiments.metrics import outcome
from experiments.sweep import search

MIN_TRIALS = 2
# With fewer trials importance ranks chance: six trials ranked the batch size first where the
# framework mattered.
MIN_FOR_IMPORTANCE = 20


def draw(study: Study) -> tuple[list[Figure], list[str]]:
    """Return the figures of a search, and a line for each that is not drawn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna's of experimental functions
        drawn = in_readable_units(study)
        count = sum(map(search.has_finite_values, drawn.trials))
        if count < MIN_TRIALS:
            return [], [f"All figures: {count} finished trials; {MIN_TRIALS} are needed"]
        figures = list(_figures_of_trials(drawn))
        if count < MIN_FOR_IMPORTANCE:
            needed = f"{MIN_FOR_IMPORTANCE} are needed to tell settings from chance"
            return figures, [f"Importance of settings: {count} finished trials; {needed}"]
        caption = "Shares of the variation between trials that each setting explains (PED-ANOVA)."
        plot = partial(visualization.plot_param_importances, drawn)
        return [*figures, draw_with_pyplot("Importance of settings", caption, plot)], []


def in_readable_units(study: Study) -> Study:
    """Return a copy whose values are in units that read well; infinite ones become failures."""
    trials = study.get_trials()
    finite = [trial for trial in trials if search.has_finite_values(trial)]
    labels = []
    for at, name in enumerate(study.metric_names or ["objective"] * len(study.directions)):
        metric = outcome(name)
        factor, unit = wording.scale(metric.unit, [trial.values[at] for trial in finite])
        labels.append(f"{metric.label}, {unit}" if unit else metric.label)
        for trial in finite:
            trial.values = [*trial.values[:at], trial.values[at] / factor, *trial.values[at + 1 :]]
    for trial in trials:
        if trial.state == TrialState.COMPLETE and not search.has_finite_values(trial):
            trial.state, trial.values = TrialState.FAIL, None
    copy = optuna.create_study(directions=study.directions)
    copy.set_metric_names(labels)
    copy.add_trials(trials)
    return copy


def _figures_of_trials(study: Study) -> Iterator[Figure]:
    labels = study.metric_names or []
    for pair in combinations(range(len(labels)), 2):
        names = [labels[at] for at in pair]
        yield draw_with_pyplot(
            "Objectives against each other",
            "No other trial surpasses the best trials in all objectives.",
            partial(
                visualization.plot_pareto_front,
                study,
                target_names=names,
                targets=partial(_values, pair),
            ),
        )
    plots: list[tuple[str, str, Any]] = [
        ("Trials in their order", "", visualization.plot_optimization_history),
        (
            "Each setting",
            "The other settings differ too: a panel does not show the effect of one setting.",
            visualization.plot_slice,
        ),
    ]
    for title, caption, function in plots:
        for at, label in enumerate(labels):
            # without a target, the history of a single objective has a line of the best values
            target = partial(_value, at) if len(labels) > 1 else None
            plot = partial(function, study, target=target, target_name=label)
            yield draw_with_pyplot(title, caption, plot)


def _value(position: int, trial: FrozenTrial) -> float:
    return float(trial.values[position])


def _values(positions: tuple[int, ...], trial: FrozenTrial) -> tuple[float, ...]:
    return tuple(trial.values[at] for at in positions)
