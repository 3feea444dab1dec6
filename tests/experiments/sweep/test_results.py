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
from tests.experiments.comparison.campaigns import RSS, STEP, frame

HEAD = results.Head("lenet", "batch_size=8..64", ["3 trials."], ["RANDOM <weights>"])


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


def titles(study: Study) -> list[str]:
    return [drawing.title for drawing in plots.drawings(study)[0]]


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        (1, []),
        (6, ["Trials in their order", "Each setting"]),
        (20, ["Trials in their order", "Each setting", "Importance of settings"]),
    ],
)
def test_importance_needs_enough_trials(trials: int, expected: list[str]) -> None:
    assert titles(small_study(trials)) == expected


def test_objectives_are_in_units_that_read_well(two_objectives: Study) -> None:
    trials = [trial for trial in two_objectives.get_trials() if search.has_finite_values(trial)]
    step, memory = plots.axes_of(two_objectives, trials)
    assert (step.label, memory.label) == ("median training step, ms", "peak process memory, MiB")
    assert step.values == pytest.approx({0: 30, 1: 26, 3: 18, 5: 10})
    assert memory.values[3] - memory.values[0] == pytest.approx(3)


def test_page_shows_every_trial_with_its_whole_run_id(
    two_objectives: Study, tmp_path: Path
) -> None:
    run = "0123456789abcdef" * 2
    trial = two_objectives.ask({"batch_size": optuna.distributions.IntDistribution(8, 64)})
    trial.set_user_attr("run", run)
    two_objectives.tell(trial, [0.02, 8e8])
    runs = {0: Cell("f" * 32, link="http://mlflow/run")}
    missing = results.write_page(two_objectives, tmp_path, HEAD, runs)
    assert [line.partition(":")[0] for line in missing] == ["Importance of settings"]
    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert f">{run}<" in page
    assert f'<a href="http://mlflow/run" target="_blank">{"f" * 32}</a>' in page
    assert re.findall(r'data-label="state"[^>]*>([\w ]+)<', page) == [
        *("complete", "complete", "fail", "complete", "out of memory", "complete", "complete")
    ]
    assert "inf" not in re.findall(r'data-label="[^"]*memory"[^>]*>([^<]+)<', page)
    assert re.findall("<figcaption>([^<]+)<", page) == [
        "Objectives against each other",
        "Trials in their order",
        "Each setting",
    ]


@pytest.mark.parametrize("trials", [2, 3, 20])
def test_no_point_of_a_figure_is_cut(trials: int) -> None:
    from matplotlib.figure import Figure

    for drawing in plots.drawings(small_study(trials))[0][:2]:
        canvas = Figure()
        drawing.paint(canvas)
        for axes in canvas.axes:
            (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
            points = [line.get_xydata() for line in axes.lines if line.get_marker() == "o"]
            assert len(points) == trials
            for x, y in (point[0] for point in points):
                assert left < x < right
                assert bottom < y < top


def test_page_has_escaped_lines_and_names_missing_plots(tmp_path: Path) -> None:
    missing = results.write_page(small_study(3), tmp_path, HEAD, {})
    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert "RANDOM &lt;weights&gt;" in page
    assert len(missing) == 1
    assert missing[0] in page


@pytest.mark.parametrize(
    ("ratio", "memory", "is_kept"),
    [
        (1.33, 1.0, False),  # slower than the default: refuted
        (1.0, 1.0, False),  # no better than the default
        (0.8, 1.0, True),
        (1.33, 0.7, True),  # a point of the front
    ],
)
def test_winner_that_its_campaign_refutes_is_no_best(
    ratio: float, memory: float, is_kept: bool
) -> None:
    runs = frame(("default", "best"), 12, factors={"best": ratio}, spread=0.005)
    runs.loc[runs["framework"] == "best", RSS] *= memory
    comparison = compare(runs, baseline="default", outcomes=[STEP, RSS])
    trial = create_trial(value=1.0)
    candidates = winners.not_refuted([trial], comparison, [STEP, RSS])
    assert candidates == [trial] * is_kept


def test_winner_that_is_not_settled_stays_a_candidate() -> None:
    runs = frame(("default", "best"), 2)
    comparison = compare(runs, baseline="default", outcomes=[STEP])
    assert len(winners.not_refuted([create_trial(value=1.0)], comparison, [STEP])) == 1
