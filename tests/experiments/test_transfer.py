"""Export of runs from one server and import into another."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import requests

from tests import warm
from tests.conftest import Place, Server
from tracking.records import Artifact, DatasetUsed, Metrics, Point, RunClosed, RunKind, RunOpened
from tracking.store import Store

EXPERIMENT = "moved"


def fill(place: Place) -> Store:
    """Store a sweep with a nested trial, confirmed by a later campaign with a cell."""
    store = Store(place.uri)
    (place.folder / "report.html").write_text("<h1>report</h1>")
    (place.folder / "deep").mkdir()
    (place.folder / "deep" / "values.parquet").write_bytes(b"\x00\x01")
    trial = {"kind": RunKind.TRIAL, "campaign": "run:sweep", "mlflow.parentRunId": "run:sweep"}
    campaign = {"kind": RunKind.CAMPAIGN, "sweep": "run:sweep"}
    cell = {"kind": RunKind.CELL, "campaign": "run:campaign", "framework": "pytorch"}
    history = tuple(Point("val/loss", 2.0 / step, step, 1_000 + step) for step in range(1, 40))
    records = [
        RunOpened("sweep", 1, EXPERIMENT, "sweep", {"kind": RunKind.SWEEP}, {"trials": "1"}),
        RunOpened("trial", 2, EXPERIMENT, "trial", trial),
        Metrics("trial", history),
        RunClosed("trial", 3, "out_of_memory", "too large", "FINISHED"),
        RunOpened("campaign", 4, EXPERIMENT, "campaign", campaign),
        RunOpened("cell", 5, EXPERIMENT, "cell", cell, {"epochs": "3"}),
        DatasetUsed("cell", "digits", "abc", "here", "{}", "{}", "training"),
        Metrics("cell", (Point("train/examples_per_second", 12.5, 0, 6),)),
        Metrics("cell", (Point("train/step_seconds", 0.1 + 0.2, 0, 6),), detail=True),
        Artifact("cell", "deep/values.parquet", "deep"),
        RunClosed("cell", 7, "ok"),
        Artifact("campaign", "report.html"),
        RunClosed("campaign", 8, "ok"),
        RunClosed("sweep", 9, "ok"),
    ]
    assert store.apply(records, place.folder) == []
    store.tag(str(store.run_id("sweep")), {"confirmed_by": str(store.run_id("campaign"))})
    return store


def call(place: Place, uri: str, *arguments: str) -> tuple[int, str]:
    environment = {**place.environment, "MLFLOW_TRACKING_URI": uri}
    done = warm.run([sys.executable, "-m", "experiments", *arguments], environment, place.folder)
    return done.returncode, done.stdout + done.stderr


def test_export_and_import_are_complete_and_idempotent(place: Place) -> None:
    source = fill(place)
    before = {run.name: run for run in source.runs(EXPERIMENT)}
    folder, target_uri = place.folder / "export", f"sqlite:///{place.folder}/target.db"
    words = ("export", f"--experiment={EXPERIMENT}", f"--output={folder}")
    code, output = call(place, place.uri, *words)
    assert code == 0, output
    for _ in range(2):
        code, output = call(place, target_uri, "import", f"--journal={folder}")
        assert code == 0, output

    target = Store(target_uri)
    runs = list(target.runs(EXPERIMENT))
    after = {run.name: run for run in runs}
    assert set(after) == set(before)
    assert len(runs) == len(before)
    new_ids = {before[name].run_id: after[name].run_id for name in before}
    for name, old in before.items():
        new = after[name]
        assert (new.status, new.start_ms, new.end_ms) == (old.status, old.start_ms, old.end_ms)
        assert dict(new.params) == dict(old.params)
        assert (dict(new.metrics), new.details) == (dict(old.metrics), old.details)
        assert new.tags["exported_run_id"] == old.run_id
        for key in ("kind", "outcome", "outcome_reason"):
            assert new.tags.get(key) == old.tags.get(key)
        for key in ("campaign", "mlflow.parentRunId", "sweep", "confirmed_by"):
            value = old.tags.get(key)
            assert new.tags.get(key) == new_ids.get(value or "", value), (name, key)
        for key in old.metrics:
            assert target.points(new.run_id, key) == source.points(old.run_id, key)
        datasets = [
            [(data.name, data.digest) for data in store.datasets(run.run_id, "x")]
            for store, run in ((source, old), (target, new))
        ]
        assert datasets[0] == datasets[1]
    downloads = place.folder / "downloads"
    files = {name: target.download(run.run_id, downloads) for name, run in after.items()}
    assert files["campaign"] == ["report.html"]
    assert files["cell"] == ["deep/values.parquet"]
    values = downloads / after["cell"].run_id / "deep" / "values.parquet"
    assert values.read_bytes() == b"\x00\x01"


@pytest.mark.slow
def test_runs_move_into_a_workspace(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import with `MLFLOW_WORKSPACE`: runs and files are in this workspace, and in no other."""
    source = fill(place)
    folder = place.folder / "export"
    words = ("export", f"--experiment={EXPERIMENT}", f"--output={folder}")
    assert call(place, place.uri, *words)[0] == 0
    (place.folder / "server").mkdir()
    server = Server(place.folder / "server", options=("--enable-workspaces",))
    try:
        workspaces = f"{server.uri}/api/3.0/mlflow/workspaces"
        requests.post(workspaces, json={"name": "vision"}, timeout=30).raise_for_status()
        monkeypatch.setenv("MLFLOW_WORKSPACE", "vision")
        environment = {**place.environment, "MLFLOW_WORKSPACE": "vision"}
        environment["MLFLOW_TRACKING_URI"] = server.uri
        command = [sys.executable, "-m", "experiments", "import", f"--journal={folder}"]
        done = warm.run(command, environment, place.folder)
        assert done.returncode == 0, done.stderr
        search = f"{server.uri}/api/2.0/mlflow/experiments/search?max_results=10"
        names = {}
        for name in ("vision", "default"):
            sent = {"X-MLFLOW-WORKSPACE": name}
            answer = requests.get(search, headers=sent, timeout=30).json()
            names[name] = [experiment["name"] for experiment in answer.get("experiments", ())]
        assert names == {"vision": [EXPERIMENT], "default": ["Default"]}
        target = Store(server.uri)
        assert len(list(target.runs(EXPERIMENT))) == len(list(source.runs(EXPERIMENT)))
        files = list((server.artifacts / "workspaces" / "vision").rglob("report.html"))
        assert len(files) == 1
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("options", "value"),
    [({"filter": "tags.kind = 'nothing'"}, "tags.kind = 'nothing'"), ({"output": "."}, "output=")],
)
def test_impossible_export_is_one_line(place: Place, options: dict[str, str], value: str) -> None:
    fill(place)
    words = {"experiment": EXPERIMENT, "output": str(place.folder / "export"), **options}
    flags = (f"--{name}={text}" for name, text in words.items())
    code, output = call(place, place.uri, "export", *flags)
    assert code == 2
    assert value in output.splitlines()[-1]
    assert not Path(place.folder / "export").exists()
