"""Sweeps in real processes with a real store and database: killed, joined, resumed."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from experiments.config import settings
from experiments.studies import captioning
from experiments.sweep import search
from tests.conftest import Place, cell_processes, set_toy_costs, wait_for
from tests.tracking.postgres import Postgres
from tests.warm import Process
from tracking import journal
from tracking.records import StoredRun
from tracking.store import Store

SMALL = {
    "data": "synthetic",
    "vocabulary": "100",
    "length": "6",
    "epochs": "1",
    "bleu_images": "1",
    "beams": "1",
    "inference_batch_sizes": "1",
    "steps_per_epoch": "3",
}
STATUS = {TrialState.COMPLETE: "FINISHED", TrialState.FAIL: "FAILED", TrialState.PRUNED: "KILLED"}
OVERHEAD_SECONDS = 0.5


def command(place: Place, **texts: str) -> list[str]:
    return place.command("sweep", **{**SMALL, **texts})


def resume(place: Place, **texts: str) -> list[str]:
    options = {"cache": str(place.cache), "journal": str(place.journal), "resume": "last", **texts}
    words = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "experiments", "sweep", *words]


def runs(place: Place, kind: str, experiment: str = "captioning") -> list[StoredRun]:
    stored = Store(place.uri).runs(experiment, f"tags.kind = '{kind}'")
    return sorted(stored, key=lambda run: run.start_ms)


def optuna_study(place: Place, storage: str = "") -> optuna.Study:
    described = {
        folder: journal.read_campaign(folder) for folder in journal.campaigns(place.journal)
    }
    folder, sweep = next(item for item in described.items() if item[1]["study"] == "sweep")
    url = storage or f"sqlite:///{folder / 'optuna.db'}"
    return optuna.load_study(study_name=sweep["run_id"], storage=url)


def lifetimes(parent: Process) -> list[tuple[float, float]]:
    """Return when each cell's process was first and last seen, from outside."""
    seen: dict[int, tuple[float, float]] = {}
    while parent.poll() is None:
        for process in cell_processes(parent.pid):
            first, _ = seen.get(process.pid, (time.monotonic(), 0.0))
            seen[process.pid] = (first, time.monotonic())
        time.sleep(0.05)  # a tenth of the limit, and of a CPU's time
    return sorted(seen.values())


def test_sweep_prunes_and_measures_the_best_again(place: Place) -> None:
    options = {
        "search": "learning_rate=0.05|0.02|0.01|0.005|1e-8",
        "objectives": "loss",
        "constraints": "memory<8GB",
        "sampler": "grid",
        "pruner": "median",
        "epochs": "3",
        "frameworks": "toy",
        "blocks": "1",
        "steps_per_epoch": "20",
    }
    parent = place.begin(*command(place, **options))
    seen = lifetimes(parent)
    assert parent.returncode == 3, parent.output  # one block gives no verdict
    study = optuna_study(place)
    trials = {run.tags["trial"]: run for run in runs(place, "trial")}
    (sweep,) = runs(place, "sweep")
    assert len(trials) == len(study.trials) == 5
    # 1e-8 learns nothing, and is stopped early
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    for trial in study.trials:
        run = trials[str(trial.number)]
        assert run.status == STATUS[trial.state]
        assert run.tags["trial.state"] == trial.state.name
        assert run.tags["mlflow.parentRunId"] == sweep.run_id
        assert json.loads(run.tags["trial.params"]) == trial.params
        assert float(run.params["learning_rate"]) == trial.params["learning_rate"]
        is_pruned = trial.state == TrialState.PRUNED
        assert (run.tags["outcome"] == "pruned") == is_pruned
        assert ("epoch" in run.tags.get("outcome_reason", "")) == is_pruned

    # only the campaign that measured the best afresh has a verdict
    (campaign,) = runs(place, "campaign")
    assert sweep.tags["confirmed_by"] == campaign.run_id
    confirmed = runs(place, "cell")
    assert {run.tags["treatment"] for run in confirmed} == {"default", "best"}
    assert {run.params["seed"] for run in confirmed} == {"1"}
    assert {run.params["seed"] for run in trials.values()} == {"0"}

    folder = place.folder / "mlruns" / "1" / sweep.run_id / "artifacts"
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert {"sweep.html", "best-settings.json"} <= names
    assert f"captioning --learning_rate={study.best_params['learning_rate']}" in parent.output
    path = next(folder.rglob("best-settings.json"))
    presets = captioning.STUDY.presets
    best: Any = settings.parse(captioning.Settings, presets, {"settings": str(path)})
    assert best.learning_rate == study.best_params["learning_rate"]

    again = place.call(*resume(place))
    assert again.returncode == 3, again.stdout + again.stderr
    assert [run.run_id for run in runs(place, "campaign")] == [campaign.run_id]
    assert (len(runs(place, "cell")), len(runs(place, "trial"))) == (2, 5)

    # first the framework's check, then the trials, then the campaign's check and cells
    pauses = [later[0] - earlier[1] for earlier, later in itertools.pairwise(seen)]
    print("seconds between two trials:", ", ".join(f"{seconds:.2f}" for seconds in pauses))
    load = max(1, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
    assert min(pauses) <= OVERHEAD_SECONDS * load  # the least: other tests run too


def test_killed_workers_lose_and_repeat_no_trial(
    place: Place, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_toy_costs(monkeypatch, step=0.15)
    storage = postgres.database("optuna")
    shared = {"storage": storage, "confirm": "false"}
    grid = {"search": "batch_size=2..6:2,framework=toy|toy+twin", "sampler": "grid", "trials": "6"}

    def count_complete() -> int:
        trials = optuna_study(place, storage).trials
        return sum(trial.state == TrialState.COMPLETE for trial in trials)

    first = place.begin(*command(place, **grid, **shared, heartbeat_seconds="1"))
    wait_for(lambda: len(cell_processes(first.pid)) == 1 and bool(runs(place, "trial")), 60)
    second = place.begin(*resume(place, journal=str(place.folder / "of another machine"), **shared))
    both = (first, second)
    wait_for(
        lambda: count_complete() >= 1 and all(cell_processes(worker.pid) for worker in both), 120
    )
    first.kill()
    before = count_complete()
    wait_for(lambda: count_complete() > before and bool(cell_processes(second.pid)), 60)
    second.kill()
    wait_for(lambda: second.poll() is not None, 10)
    complete = count_complete()

    third = place.call(*resume(place, **shared))
    assert third.returncode == 3, third.stdout + third.stderr
    assert "Warning" not in third.stderr
    assert f"[ 1/{6 - complete}]" in third.stdout, "finished trials are not run again"
    study = optuna_study(place, storage)
    counted = search.counted(study.trials)
    assert [trial.state for trial in counted] == [TrialState.COMPLETE] * 6
    points = {(trial.params["batch_size"], trial.params["framework"]) for trial in counted}
    assert len(points) == 6, "every point of the grid once"
    dropped = [trial for trial in study.trials if trial.state == TrialState.FAIL]
    assert 1 <= len(dropped) <= 2  # none if the kill fell between two trials
    stored = runs(place, "trial")
    assert {run.tags["framework"] for run in stored} == {"toy", "toy+twin"}
    assert {run.tags["parity"] for run in stored} == {"equal"}
    statuses = [run.status for run in stored]
    assert statuses.count("FINISHED") == 6
    assert set(statuses) == {"FINISHED", "FAILED"}, "no run is left open"
    assert [run.status for run in runs(place, "sweep")] == ["FINISHED"]


def test_trial_out_of_memory_is_a_result(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # two images of 64 × 64 need a few MiB besides the program; 4,000 need 4 GB of the toy's device
    set_toy_costs(monkeypatch, row_bytes=1_000_000)
    options = {
        "experiment": "grid",
        "search": "batch_size=2|4000",
        "sampler": "grid",
        "confirm": "false",
        "models": "mobilenet_v2",
        "frameworks": "toy",
        "memory_limit": "1500MB",
        "seconds": "0.05",
        "threads": "1",
        "others_limit_percent": "100",
        "cache": str(place.cache),
        "journal": str(place.journal),
    }
    words = [f"--{name}={text}" for name, text in options.items()]
    done = place.call(sys.executable, "-m", "experiments", "sweep", *words)
    assert done.returncode == 3, done.stdout + done.stderr
    stored = {run.params["batch_size"]: run for run in runs(place, "trial", "grid")}
    outcomes = {size: (run.tags["outcome"], run.status) for size, run in stored.items()}
    assert outcomes == {"2": ("ok", "FINISHED"), "4000": ("out_of_memory", "FINISHED")}
    assert stored["4000"].tags["trial.feasible"] == "false"
    assert "grid --batch_sizes=2" in done.stdout
    (path,) = place.journal.glob("*/found/best-settings.json")
    assert json.loads(path.read_text())["batch_sizes"] == [2]
