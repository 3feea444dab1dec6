"""Table and page of a sweep, and the plots that it has."""

from __future__ import annotations

import re
from pathlib import Path

import optuna
import pytest
from optuna.study import Study
from optuna.trial import TrialState, create_trial

from experiments.comparison import compare
from experiments.comparison.report.sections import Cell
from experiments.sweep import plots, results, search, winners
from experiments.sweep.settings import Sweep
from tests.experiments.comparison.campaigns import RSS, STEP, frame

SWEEP = Sweep("lenet", "batch_size=8..64")


def small_study(trials: int) -> Study:
    """Create a study of the framework and two numbers; its value is in seconds."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.set_metric_names(["train/step_seconds"])

    def objective(trial: optuna.Trial) -> float:
        framework = trial.suggest_categorical("framework", ["pytorch", "tensorflow"])
        size = trial.suggest_int("batch_size", 8, 64)
        rate = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
        return size * (1 + (framework == "tensorflow")) + rate

    study.optimize(objective, n_trials=trials)
    return study


@pytest.fixture
def two_objectives() -> Study:
    """Create a study whose third trial failed and whose fifth ran out of memory."""
    study = optuna.create_study(directions=["minimize", "minimize"])
    study.set_metric_names(["train/step_seconds", "memory/peak_rss_bytes"])
    for number in range(6):
        trial = study.ask({"batch_size": optuna.distributions.IntDistribution(8, 64)})
        trial.set_constraint(search.FITS, 1.0 if number == 4 else -1.0)
        if number == 2:
            study.tell(trial, state=TrialState.FAIL)
        elif number == 4:
            study.tell(trial, [float("inf")] * 2)
        else:
            study.tell(trial, [0.03 - 0.004 * number, 7e8 + 2**20 * number])
    return study


@pytest.mark.parametrize("trials", [1, 6, 20])
def test_importance_needs_enough_trials(trials: int) -> None:
    figures, missing = plots.draw(small_study(trials))
    titles = ["Trials in their order", "Each setting", "Importance of settings"]
    assert [figure.title for figure in figures] == titles[: {1: 0, 6: 2, 20: 3}[trials]]
    assert len(missing) == (trials < 20)


def test_objectives_are_in_units_that_read_well(two_objectives: Study) -> None:
    study = plots.in_readable_units(two_objectives)
    assert study.metric_names == ["median training step, ms", "peak process memory, MiB"]
    values = {trial.number: trial.values for trial in study.trials if trial.values}
    steps = {number: step for number, (step, _) in values.items()}
    assert steps == pytest.approx({0: 30, 1: 26, 3: 18, 5: 10})
    assert values[3][1] - values[0][1] == pytest.approx(3)


def test_page_shows_every_trial_and_figure(two_objectives: Study, tmp_path: Path) -> None:
    run = "0123456789abcdef" * 2
    trial = two_objectives.ask({"batch_size": optuna.distributions.IntDistribution(8, 64)})
    trial.set_user_attr("run", run)
    two_objectives.tell(trial, [0.02, 8e8])
    runs = {0: Cell("f" * 32, link="http://mlflow/run")}
    warnings = ["RANDOM <weights>"]
    (missing,) = results.write_page(two_objectives, tmp_path, SWEEP, [], warnings, runs)
    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert missing in page
    assert "RANDOM &lt;weights&gt;" in page
    assert f">{run}<" in page
    assert f'<a href="http://mlflow/run" target="_blank">{"f" * 32}</a>' in page
    assert re.findall(r'data-label="state"[^>]*>([\w ]+)<', page) == [
        *("complete", "complete", "fail", "complete", "out of memory", "complete", "complete")
    ]
    assert "inf" not in re.findall(r'data-label="[^"]*memory"[^>]*>([^<]+)<', page)
    titles = ["Objectives against each other", *["Trials in their order", "Each setting"] * 2]
    assert sorted(re.findall("<figcaption>([^<]+)<", page)) == sorted(titles)


@pytest.mark.parametrize(
    ("ratio", "memory", "blocks", "is_kept"),
    [
        (1.33, 1.0, 12, False),  # slower than the default: refuted
        (1.0, 1.0, 12, False),  # no better than the default
        (0.8, 1.0, 12, True),
        (1.33, 0.7, 12, True),  # a point of the front
        (1.33, 1.0, 2, True),  # not settled
    ],
)
def test_winner_that_its_campaign_refutes_is_no_best(
    ratio: float, memory: float, blocks: int, is_kept: bool
) -> None:
    runs = frame(("default", "best"), blocks, factors={"best": ratio}, spread=0.005)
    runs.loc[runs["framework"] == "best", RSS] *= memory
    comparison = compare(runs, baseline="default", outcomes=[STEP, RSS])
    trial = create_trial(value=1.0)
    candidates = winners.not_refuted([trial], comparison, [STEP, RSS])
    assert candidates == [trial] * is_kept
