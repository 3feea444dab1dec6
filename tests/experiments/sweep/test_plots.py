"""What a sweep's page draws, what it leaves out, and what it warns of."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import optuna
import pytest
from optuna.study import Study
from optuna.trial import TrialState

from experiments.sweep import plots
from experiments.sweep.worker import Worker
from tracking.records import RunOpened
from tracking.store import Store


def small_study(trials: int) -> Study:
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
    assert [one.name for one in plots._plots(small_study(trials))] == drawn


def test_a_contour_lies_between_numbers_only() -> None:
    study = small_study(6)
    assert plots._numeric(study) == ["batch_size", "learning_rate"]
    (contour,) = (one for one in plots._plots(study) if one.name == "contour")
    titles = contour.interactive().layout.to_plotly_json()
    assert {titles["xaxis"]["title"]["text"], titles["yaxis"]["title"]["text"]} == {"batch_size", "learning_rate"}


def _two_objectives() -> Study:
    """Seconds of a step and bytes; the third trial failed, and one ran out of memory."""
    study = optuna.create_study(directions=["minimize", "minimize"])
    study.set_metric_names(["train/step_seconds", "memory/peak_rss_bytes"])
    for at in range(6):
        trial = study.ask({"batch_size": optuna.distributions.IntDistribution(8, 64)})
        trial.set_user_attr("run", f"run{at}")
        values = [float("inf")] * 2 if at == 4 else [0.03 - 0.004 * at, 7e8 + 2**20 * at]
        study.tell(trial, None if at == 2 else values, state=TrialState.FAIL if at == 2 else None)
    return study


def test_values_are_in_peoples_units_and_trials_keep_their_numbers() -> None:
    pages = {f"run{at}": f"https://mlflow.example/run{at}" for at in range(6)}
    drawn = {one.name: one for one in plots._plots(_two_objectives(), pages)}
    figure = drawn["history_train_step_seconds"].interactive()
    assert figure.layout.yaxis.title.text == "median training step, ms"
    seen, best, _infeasible = figure.data
    assert list(seen.x) == [0, 1, 3, 5]
    assert list(seen.y) == pytest.approx([30, 26, 18, 10])
    assert list(seen.customdata) == [f"https://mlflow.example/run{at}" for at in (0, 1, 3, 5)]
    assert list(best.y)[-1] == pytest.approx(10), "the best so far, with two objectives too"
    front = drawn["pareto_front"].interactive()
    assert {front.layout.xaxis.title.text, front.layout.yaxis.title.text} == {
        "median training step, ms",
        "peak process memory, MiB",
    }


def test_importance_has_its_uncertainty() -> None:
    """The batch size makes nearly all of it, the learning rate nothing: no resample says otherwise."""
    study = small_study(20)
    (ranked,) = (one for one in plots._plots(study) if one.name == "importance")
    lines = ranked.interactive().data[1]
    found = {name: (lines.x[at], lines.x[at + 1]) for at, name in enumerate(lines.y) if at % 3 == 0}
    assert found["batch_size"][0] > found["learning_rate"][1]
    assert all(high > low for low, high in found.values())
    assert "90 % intervals" in ranked.picture().get_xlabel()


def test_pages_are_those_of_the_sweeps_own_trials(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table names a run as the search does; the server has given it an id of its own."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    opened = [RunOpened("sweep", 0, "e", "sweep", {"kind": "sweep"}, {})]
    for name, parent in (("mine", "run:sweep"), ("another", "elsewhere")):
        opened.append(RunOpened(name, 1, "e", name, {"kind": "trial", "mlflow.parentRunId": parent}, {}))
    assert store.apply(opened, tmp_path) == []
    runner = SimpleNamespace(store=store, experiment="e", run_id=store.run_id("sweep"), deliver=lambda: True)
    monkeypatch.setattr(store, "address", lambda run: f"page of {run}")
    assert Worker._pages(SimpleNamespace(runner=runner)) == {"mine": f"page of {store.run_id('mine')}"}  # type: ignore[arg-type]


def test_a_row_leads_to_its_run(tmp_path: Path) -> None:
    table = [["trial", "run"], ["0", "<run>"], ["1", ""]]
    plots.write(small_study(2), tmp_path, "A sweep", [], table, pages={"<run>": "https://mlflow.example/<run>"})
    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert '<td><a href="https://mlflow.example/&lt;run&gt;" target="_blank">&lt;run&gt;</a></td>' in page
    assert "<td>1</td><td></td>" in page


def test_the_page_warns_and_says_what_is_not_drawn(tmp_path: Path) -> None:
    missing = plots.write(small_study(3), tmp_path, "A sweep", ["3 trials."], [["trial"], ["0"]], warned=["RANDOM <weights>"])
    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert page.index("⚠ RANDOM &lt;weights&gt;") < page.index("3 trials.")
    assert missing == ["What matters: 3 finished trials; 20 are needed to tell settings from chance"]
    assert missing[0] in page
    assert not (tmp_path / "figures" / "importance.png").exists()
