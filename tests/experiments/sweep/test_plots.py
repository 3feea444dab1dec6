"""The page of a sweep: which of Optuna's plots it has, and its warnings."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.study import Study
from optuna.trial import TrialState

from experiments.sweep import plots, report, search


def small_study(trials: int) -> Study:
    """Create a study of the framework and two numbers; its value is in seconds."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.set_metric_names(["train/step_seconds"])

    def objective(trial: optuna.Trial) -> float:
        framework = trial.suggest_categorical("framework", ["pytorch", "tensorflow"])
        size, rate = (
            trial.suggest_int("batch_size", 8, 64),
            trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
        )
        return size * (1 + (framework == "tensorflow")) + rate

    study.optimize(objective, n_trials=trials)
    return study


def two_objectives() -> Study:
    """Create a study whose third trial failed and whose fifth ran out of memory."""
    study = optuna.create_study(directions=["minimize", "minimize"])
    study.set_metric_names(["train/step_seconds", "memory/peak_rss_bytes"])
    for number in range(6):
        trial = study.ask({"batch_size": optuna.distributions.IntDistribution(8, 64)})
        trial.set_user_attr("reason", "=1+1")
        trial.set_constraint(search.FITS, 1.0 if number == 4 else -1.0)
        values = (
            [float("inf")] * 2 if number == 4 else [0.03 - 0.004 * number, 7e8 + 2**20 * number]
        )
        study.tell(
            trial, None if number == 2 else values, state=TrialState.FAIL if number == 2 else None
        )
    return study


def names(study: Study) -> list[str]:
    trials = [trial for trial in study.get_trials() if search.has_finite_values(trial)]
    return [name for name, _ in plots._plots(study, trials)]


@pytest.mark.parametrize(
    ("trials", "kinds"),
    [
        (1, []),
        (6, ["History", "Each setting", "Two settings"]),
        (20, ["History", "Importance", "Each setting", "Two settings"]),
    ],
)
def test_importance_needs_enough_trials(trials: int, kinds: list[str]) -> None:
    assert names(small_study(trials)) == [f"{kind}: median training step, s" for kind in kinds]


def test_a_contour_lies_between_numbers_only() -> None:
    study = small_study(6)
    contour = dict(plots._plots(study, study.trials))[
        "Two settings: median training step, s"
    ]().layout.to_plotly_json()
    assert {contour["xaxis"]["title"]["text"], contour["yaxis"]["title"]["text"]} == {
        "batch_size",
        "learning_rate",
    }


def test_several_objectives_have_a_front_and_a_history_each(tmp_path: Path) -> None:
    study = two_objectives()
    kinds = [
        f"{kind}: {name}"
        for name in ("median training step, s", "peak process memory, bytes")
        for kind in ("History", "Each setting")
    ]
    assert names(study) == ["Pareto front", *kinds]
    missing = plots.write(study, tmp_path, "A sweep", [])
    assert missing == [
        "Importance: 4 finished trials; 20 are needed to tell settings from chance"
    ], "all others are drawn"


def test_table_marks_trials_out_of_memory(tmp_path: Path) -> None:
    report.write_table(two_objectives(), tmp_path)
    header, *rows = (line.split(",") for line in (tmp_path / "trials.csv").read_text().splitlines())
    table = [dict(zip(header, row, strict=True)) for row in rows]
    assert [row["state"] for row in table] == ["COMPLETE"] * 2 + ["FAIL"] + ["COMPLETE"] * 3
    assert [row["number"] for row in table if row[f"constraints_{search.FITS}"] == "1.0"] == ["4"]
    assert {row["user_attrs_reason"] for row in table} == {"'=1+1"}, "no formula"
    assert "params_batch_size" in header


def test_the_page_warns_and_names_what_is_not_drawn(tmp_path: Path) -> None:
    missing = plots.write(
        small_study(3), tmp_path, "A sweep", ["3 trials."], warned=["RANDOM <weights>"]
    )
    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert page.index("⚠ RANDOM &lt;weights&gt;") < page.index("3 trials.")
    assert missing == ["Importance: 3 finished trials; 20 are needed to tell settings from chance"]
    assert missing[0] in page
