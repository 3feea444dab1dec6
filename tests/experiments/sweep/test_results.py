"""Table and page of a sweep, and the plots that it has."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.study import Study
from optuna.trial import TrialState

from experiments.sweep import results, search


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


def plot_names(study: Study) -> list[str]:
    trials = [trial for trial in study.get_trials() if search.has_finite_values(trial)]
    return [name.partition(":")[0] for name, _ in results._plots(study, trials)]


@pytest.mark.parametrize(
    ("trials", "kinds"),
    [
        (1, []),
        (6, ["History", "Each setting", "Two settings"]),
        (20, ["History", "Importance", "Each setting", "Two settings"]),
    ],
)
def test_importance_needs_enough_trials(trials: int, kinds: list[str]) -> None:
    assert plot_names(small_study(trials)) == kinds


def test_several_objectives_have_a_front_and_all_plots_are_drawn(
    two_objectives: Study, tmp_path: Path
) -> None:
    assert plot_names(two_objectives) == ["Pareto front", *["History", "Each setting"] * 2]
    missing = results.write_page(two_objectives, tmp_path, "A sweep", [])
    assert [line.partition(":")[0] for line in missing] == ["Importance"]


def test_page_has_escaped_lines_and_names_missing_plots(tmp_path: Path) -> None:
    missing = results.write_page(small_study(3), tmp_path, "A sweep", ["RANDOM <weights>"])
    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert "RANDOM &lt;weights&gt;" in page
    assert len(missing) == 1
    assert missing[0] in page
