"""What a sweep's page draws, what it leaves out, and what it warns of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.study import Study

from experiments.sweep import plots


def _study(trials: int) -> Study:
    """The framework and two numbers; seconds."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.set_metric_names(["train/step_seconds"])
    rng = np.random.default_rng(0)

    def objective(trial: optuna.Trial) -> float:
        framework = trial.suggest_categorical("framework", ["pytorch", "tensorflow"])
        size, rate = trial.suggest_int("batch_size", 8, 64), trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
        return size * (1 + (framework == "tensorflow")) + rate + float(rng.normal())

    study.optimize(objective, n_trials=trials)
    return study


@pytest.mark.parametrize(
    ("trials", "drawn"), [(6, ["history", "slice", "contour"]), (20, ["history", "importance", "slice", "contour"])]
)
def test_settings_are_ranked_only_where_chance_does_not_rank_them(trials: int, drawn: list[str]) -> None:
    assert [one.name for one in plots._plots(_study(trials))] == drawn


def test_a_contour_lies_between_numbers_only() -> None:
    study = _study(6)
    assert plots._numeric(study) == ["batch_size", "learning_rate"]
    (contour,) = (one for one in plots._plots(study) if one.name == "contour")
    titles = contour.interactive().layout.to_plotly_json()
    assert {titles["xaxis"]["title"]["text"], titles["yaxis"]["title"]["text"]} == {"batch_size", "learning_rate"}


def test_the_page_warns_and_says_what_is_not_drawn(tmp_path: Path) -> None:
    missing = plots.write(_study(3), tmp_path, "A sweep", ["3 trials."], [["trial"], ["0"]], warned=["RANDOM <weights>"])
    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert page.index("⚠ RANDOM &lt;weights&gt;") < page.index("3 trials.")
    assert missing == ["What matters: 3 finished trials; 20 are needed to tell settings from chance"]
    assert missing[0] in page
    assert not (tmp_path / "figures" / "importance.png").exists()
