"""Sweeps in real processes with a real store and database: killed, joined, resumed."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

import optuna
import psutil
import pytest
from optuna.trial import TrialState

from experiments.config import settings as settings_
from experiments.studies import captioning
from experiments.sweep import search
from tests.conftest import Place, toy_costs, wait_for
from tests.tracking.postgres import Postgres
from tests.warm import Process
from tracking import journal
from tracking.records import StoredRun
from tracking.store import Store

SMALL = {
    **{
        "data": "synthetic",
        "vocabulary": "100",
        "length": "6",
        "epochs": "1",
        "bleu_images": "1",
        "beams": "1",
    },
    **{"save_model": "none", "inference_batch_sizes": "1", "steps_per_epoch": "3"},
}
STATUS = {TrialState.COMPLETE: "FINISHED", TrialState.FAIL: "FAILED", TrialState.PRUNED: "KILLED"}
OVERHEAD_SECONDS = 0.5


def command(place: Place, **texts: str) -> list[str]:
    return place.command("sweep", **{**SMALL, **texts})


def resume(place: Place, **texts: str) -> list[str]:
    options = {"cache": str(place.cache), "journal": str(place.journal), "resume": "last", **texts}
    return [
        sys.executable,
        "-m",
        "experiments",
        "sweep",
        *(f"--{name}={value}" for name, value in options.items()),
    ]


def runs(place: Place, kind: str) -> list[StoredRun]:
    return sorted(
        Store(place.uri).runs("captioning", f"tags.kind = '{kind}'"), key=lambda run: run.start_ms
    )


def optuna_study(place: Place, storage: str = "") -> optuna.Study:
    folder = next(
        folder
        for folder in journal.campaigns(place.journal)
        if journal.read_campaign(folder)["study"] == "sweep"
    )
    url = storage or f"sqlite:///{folder / 'optuna.db'}"
    return optuna.load_study(study_name=journal.read_campaign(folder)["run_id"], storage=url)


def cells(parent: int) -> list[psutil.Process]:
    try:
        children = psutil.Process(parent).children()
        return [process for process in children if "experiments.cell" in process.cmdline()]
    except psutil.Error:
        return []


def lifetimes(parent: Process) -> list[tuple[float, float]]:
    """When each cell's process was first and last seen, from outside."""
    seen: dict[int, tuple[float, float]] = {}
    while parent.poll() is None:
        for process in cells(parent.pid):
            first, _ = seen.get(process.pid, (time.monotonic(), 0.0))
            seen[process.pid] = (first, time.monotonic())
        time.sleep(0.05)  # a tenth of what is asked of them, and of a CPU's time
    return sorted(seen.values())


def test_sweep_prunes_and_measures_the_best_again(
    place: Place,
) -> None:
    rates = "learning_rate=0.05|0.02|0.01|0.005|1e-8"
    options = {
        "search": rates,
        "objectives": "loss",
        "constraints": "memory<8GB",
        "sampler": "grid",
        "pruner": "median",
    }
    options |= {"epochs": "3", "frameworks": "toy", "blocks": "1", "steps_per_epoch": "20"}
    parent = place.begin(*command(place, **options))
    seen = lifetimes(parent)
    output = parent.said
    assert parent.returncode == 3, output  # one block gives no verdict
    assert "optuna-dashboard sqlite:///" in output

    study = optuna_study(place)
    trials = {run.tags["trial"]: run for run in runs(place, "trial")}
    (sweep,) = runs(place, "sweep")
    assert len(trials) == len(study.trials) == 5
    states = {trial.state for trial in study.trials}
    assert states == {TrialState.COMPLETE, TrialState.PRUNED}, (
        "1e-8 learns nothing, and is stopped early"
    )
    for trial in study.trials:
        run = trials[str(trial.number)]
        assert run.status == STATUS[trial.state]
        assert run.tags["trial.state"] == trial.state.name
        assert run.tags["mlflow.parentRunId"] == sweep.run_id
        assert json.loads(run.tags["trial.params"]) == trial.params
        assert float(run.params["learning_rate"]) == trial.params["learning_rate"]
    pruned = next(
        trials[str(trial.number)] for trial in study.trials if trial.state == TrialState.PRUNED
    )
    assert pruned.tags["outcome"] == "pruned"
    assert "pruned after epoch" in pruned.tags["outcome_reason"]

    # only the campaign that measured the best afresh may speak of a verdict
    (campaign,) = runs(place, "campaign")
    assert sweep.tags["confirmed_by"] == campaign.run_id
    assert {run.tags["treatment"] for run in runs(place, "cell")} == {"default", "best"}
    assert (
        {run.params["seed"] for run in runs(place, "cell")}
        == {"1"}
        != {run.params["seed"] for run in trials.values()}
    )
    compared = place.call(
        *(
            sys.executable,
            "-m",
            "experiments",
            "compare",
            "--factor=learning_rate",
            "--experiment=captioning",
        ),
        *("--figures=false", f"--output={place.folder}/comparisons"),
    )
    assert all(f"trial {number}" not in compared.stdout + compared.stderr for number in trials)

    best = place.folder / "mlruns" / "1" / sweep.run_id / "artifacts"
    names = {path.name for path in best.rglob("*") if path.is_file()}
    assert {"sweep.html", "trials.csv", "best-settings.json"} <= names
    settings = settings_.parse(
        captioning.Settings,
        captioning.STUDY.presets,
        {"settings": str(next(best.rglob("best-settings.json")))},
    )
    assert settings.learning_rate == study.best_params["learning_rate"]

    again = place.call(*resume(place))
    assert again.returncode == 3, again.stdout + again.stderr
    assert [run.run_id for run in runs(place, "campaign")] == [campaign.run_id], (
        "what was judged is not measured again"
    )
    assert len(runs(place, "cell")) == 2
    assert len(runs(place, "trial")) == 5

    # first the framework's check, then the trials, then the campaign's check and cells
    between = [later[0] - earlier[1] for earlier, later in itertools.pairwise(seen)]
    print(
        f"between the end of a trial's process and the start of the next: {', '.join(f'{seconds:.2f}' for seconds in between)} s"
    )
    crowd = max(1, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
    assert min(between) <= OVERHEAD_SECONDS * crowd, (
        "the least, since other tests run beside this one"
    )


def test_killed_workers_lose_and_repeat_no_trial(
    place: Place, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in toy_costs(step=0.15).items():
        monkeypatch.setenv(name, text)
    storage = postgres.database("optuna")
    options = {
        "search": "batch_size=2..6:2,framework=toy|toy+twin",
        "trials": "6",
        "sampler": "grid",
    }
    shared = {"storage": storage, "confirm": "false"}
    first = place.begin(*command(place, **options, **shared, heartbeat_seconds="1"))
    wait_for(lambda: len(cells(first.pid)) == 1 and bool(runs_or_none(place)), 60)
    second = place.begin(*resume(place, journal=str(place.folder / "of another machine"), **shared))
    wait_for(
        lambda: (
            finished(place, storage) >= 1 and bool(cells(second.pid)) and bool(cells(first.pid))
        ),
        120,
    )
    first.kill()
    before = finished(place, storage)
    wait_for(lambda: finished(place, storage) > before and bool(cells(second.pid)), 60)
    second.kill()
    wait_for(lambda: second.poll() is not None, 10)
    done_before = {
        trial.number
        for trial in optuna_study(place, storage).trials
        if trial.state == TrialState.COMPLETE
    }

    third = place.call(*resume(place, **shared))
    assert third.returncode == 3, third.stdout + third.stderr
    assert "ExperimentalWarning" not in third.stderr
    study = optuna_study(place, storage)
    counted = search.counted(study.trials)
    assert [trial.state for trial in counted] == [TrialState.COMPLETE] * 6
    points = {(trial.params["batch_size"], trial.params["framework"]) for trial in counted}
    assert len(points) == 6, "every point of the grid once"
    dropped = [trial for trial in study.trials if trial.state == TrialState.FAIL]
    assert 1 <= len(dropped) <= 2, (
        "one a killed worker; none where the kill fell between two trials"
    )
    assert f"[ 1/{6 - len(done_before)}]" in third.stdout, "what was finished is not run again"
    stored = list(runs(place, "trial"))
    assert {run.tags["framework"] for run in stored} == {"toy", "toy+twin"}
    assert {run.tags["parity"] for run in stored} == {"equal"}
    assert sum(run.status == "FINISHED" for run in stored) == 6
    assert {run.status for run in stored} == {"FINISHED", "FAILED"}, "no run is left open"
    (sweep,) = runs(place, "sweep")
    assert sweep.status == "FINISHED"


def runs_or_none(place: Place) -> list[StoredRun]:
    return runs(place, "trial") if (place.folder / "mlflow.db").exists() else []


def finished(place: Place, storage: str) -> int:
    return sum(trial.state == TrialState.COMPLETE for trial in optuna_study(place, storage).trials)


def test_largest_batch_that_fits(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # two images of 64 × 64 need a few MiB beyond the program itself; 4,000 need 200 MB, and 4 GB of the toy's device
    for name, text in toy_costs(row_bytes=1_000_000).items():
        monkeypatch.setenv(name, text)
    options = {
        "experiment": "grid",
        "search": "batch_size=2|4|4000",
        "find": "max_batch",
        "confirm": "false",
    }
    small = {
        "models": "mobilenet_v2",
        "frameworks": "toy",
        "phases": "inference",
        "memory_limit": "1500MB",
        "seconds": "0.05",
    }
    options = {
        "threads": "1",
        "others_limit_percent": "100",
        "cache": str(place.cache),
        "journal": str(place.journal),
        **options,
        **small,
    }
    done = place.call(
        *[sys.executable, "-m", "experiments", "sweep"],
        *(f"--{name}={text}" for name, text in options.items()),
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the largest batch that fits is 4." in done.stdout
    stored = sorted(
        Store(place.uri).runs("grid", "tags.kind = 'trial'"), key=lambda run: run.start_ms
    )
    assert [(run.params["batch_size"], run.tags["outcome"]) for run in stored] == [
        ("4", "ok"),
        ("4000", "out_of_memory"),
    ]
    assert [run.status for run in stored] == ["FINISHED", "FINISHED"], (
        "running out of memory is a result"
    )
    assert stored[1].tags["trial.feasible"] == "false"


@pytest.mark.slow
def test_best_batch_size_is_judged_by_a_campaign(place: Place) -> None:
    options = {
        "search": "batch_size=2|8|32",
        "find": "best_batch",
        "frameworks": "pytorch",
        "blocks": "6",
    }
    done = place.call(*command(place, **options))
    assert done.returncode in (0, 3), done.stdout + done.stderr
    report = next(place.journal.glob("*/report/report.md")).read_text()
    assert "batch" in report
    (campaign,) = runs(place, "campaign")
    assert campaign.tags["find"] == "best_batch"
    compared = json.loads(next(place.journal.glob("*/report/comparison.json")).read_text())
    assert {(row["factor"], row["b"]) for row in compared["rows"]} == {
        ("batch_size", "2"),
        ("batch_size", "32"),
    }
    assert all(
        run.params["inference_batch_sizes"] == run.params["batch_size"]
        for run in runs(place, "cell")
    )


def test_unknown_objective_ends_the_sweep(place: Place) -> None:
    options = {
        "search": "learning_rate=0.001..0.01:log",
        "objectives": "energy/watt_hours:min",
        "frameworks": "toy",
        "trials": "3",
    }
    done = place.call(*command(place, **options))
    assert done.returncode == 2
    assert "the first trial has no energy/watt_hours; have " in done.stderr
    assert "Traceback" not in done.stderr
    (sweep,) = runs(place, "sweep")
    assert sweep.status == "FAILED"
    assert len(runs(place, "trial")) == 1


def test_files_of_settings_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "best.json"

    def parse(text: str, **texts: str) -> captioning.Settings:
        path.write_text(text)
        return settings_.parse(
            captioning.Settings, captioning.STUDY.presets, {"settings": str(path), **texts}
        )

    settings = parse(
        '{"batch_size": 64, "frameworks": ["tensorflow"], "aa": true, "dropout": 0.25}',
        dropout="0.1",
    )
    assert (settings.batch_size, settings.frameworks, settings.aa, settings.dropout) == (
        64,
        ("tensorflow",),
        True,
        0.1,
    )
    for text, message in {
        "batch_size: 64": "is not JSON",
        "[1]": "holds no object",
        '{"batch_size": {"a": 1}}': "batch_size is neither a text, a number, true, false, nor a list of them",
        '{"batchsize": 1}': "there is no setting 'batchsize'; did you mean batch_size?",
        "[" * 50_000: "is not JSON: nested too deeply",
        '"' + "x" * 70_000 + '"': "has more than 65,536 bytes",
    }.items():
        with pytest.raises(settings_.UsageError) as error:
            parse(text)
        assert message in str(error.value)
