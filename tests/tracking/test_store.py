"""Records into a real tracking store, twice: the second time changes nothing."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from pathlib import Path

import pytest

from tests.conftest import Server, wait_for
from tracking.errors import WrongCall
from tracking.journal import Journal
from tracking.records import Artifact, DatasetUsed, Metrics, Point, Record, RunClosed, RunOpened, StoredRun, Tags
from tracking.store import Store, Unreachable
from tracking.upload import Uploader


def some_records(folder: Path) -> list[Record]:
    (folder / "cells").mkdir(exist_ok=True)
    (folder / "cells" / "note.txt").write_text("kept")
    points = tuple(Point("train/loss", 1 / (step + 1), step, 1_000 + step) for step in range(2_500))
    return [
        RunOpened("c1", 1_000, "captioning", "campaign", {"kind": "campaign"}),
        RunOpened("r1", 2_000, "captioning", "cell", {"kind": "cell", "campaign": "run:c1"}, {"batch_size": "32"}),
        Metrics("r1", (*points, Point("bad", math.nan, 0, 1))),
        Tags("r1", {"machine": "abc"}),
        Artifact("r1", "cells/note.txt"),
        DatasetUsed("r1", "scenes", "d1", "folder", "{}", "{}", "training"),
        RunClosed("r1", 9_000, "ok"),
        RunClosed("c1", 9_500, "failed", "one cell failed"),
    ]


def everything(store: Store) -> dict[str, StoredRun]:
    """All runs by name; NaN as text, so that equal runs compare equal."""
    found = {}
    for run in store.runs("captioning"):
        metrics = {key: "NaN" if math.isnan(value) else value for key, value in run.metrics.items()}
        found[run.name] = dataclasses.replace(run, metrics=metrics)  # type: ignore[arg-type]
    return found


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(f"sqlite:///{tmp_path}/mlflow.db")


def test_applying_twice_from_two_processes_changes_nothing(store: Store, tmp_path: Path) -> None:
    records = some_records(tmp_path)
    assert store.apply(records, tmp_path) == []
    first = everything(store)
    assert Store(store.uri).apply(records, tmp_path) == []
    second = everything(store)
    assert first == second
    assert len(second) == 2
    cell = second["cell"]
    assert cell.status == "FINISHED"
    assert cell.tags["campaign"] == second["campaign"].run_id
    assert cell.params == {"batch_size": "32"}
    assert cell.metrics == {"train/loss": 1 / 2_500, "bad": "NaN"}
    history = store._client.get_metric_history(cell.run_id, "train/loss")
    assert [point.step for point in history] == list(range(2_500))
    assert second["campaign"].status == "FAILED"
    assert second["campaign"].tags["outcome_reason"] == "one cell failed"


def test_what_the_server_refuses_is_told_and_the_rest_arrives(store: Store, tmp_path: Path) -> None:
    records: list[Record] = [
        RunOpened("r1", 1, "captioning", "cell"),
        Metrics("r1", (Point("not (allowed)", 1.0, 0, 0),)),
        Artifact("r1", "not/there"),
        Tags("r1", {"after": "yes"}),
    ]
    refused = store.apply(records, tmp_path)
    assert len(refused) == 2
    assert everything(store)["cell"].tags["after"] == "yes"


def test_a_deleted_experiment_is_named_with_its_remedy(store: Store) -> None:
    store._client.delete_experiment(store.experiment_id("captioning"))
    with pytest.raises(WrongCall, match="experiments restore"):
        store.experiment_id("captioning")


def test_a_dead_server_costs_seconds() -> None:
    began = time.monotonic()
    with pytest.raises(WrongCall, match="cannot be used"):
        Store("http://127.0.0.1:9").check()
    assert time.monotonic() - began < 15  # two tries with a pause of a second or two; MLflow's default would be four minutes


def test_runs_of_a_vanished_process_are_closed_and_those_of_a_living_one_kept(store: Store, tmp_path: Path) -> None:
    old = str(int(time.time()) - 3_600)
    now_ms = int(time.time() * 1_000)
    here = {"kind": "campaign", "host": "here", "heartbeat": str(int(time.time()))}
    store.apply(
        [
            RunOpened("dead", now_ms, "captioning", "dead", {**here, "pid": "1", "heartbeat": old}),
            RunOpened("dead-cell", now_ms, "captioning", "dead-cell", {"kind": "cell", "campaign": "run:dead"}),
            RunOpened("gone", now_ms, "captioning", "gone", {**here, "pid": "2"}),
            RunOpened("alive", now_ms, "captioning", "alive", {**here, "pid": "3"}),
            RunOpened("alive-cell", now_ms, "captioning", "alive-cell", {"kind": "cell", "campaign": "run:alive"}),
        ],
        tmp_path,
    )
    store.close_stale("captioning", lambda _, pid: False if pid == "2" else None)
    statuses = {name: run.status for name, run in everything(store).items()}
    assert statuses == {"dead": "KILLED", "dead-cell": "KILLED", "gone": "KILLED", "alive": "RUNNING", "alive-cell": "RUNNING"}
    assert "ended without a word" in everything(store)["dead-cell"].tags["outcome_reason"]


def test_records_written_while_the_server_is_dead_arrive_in_order_when_it_is_back(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracking.upload.LONGEST_PAUSE_SECONDS", 2.0)
    folder = tmp_path / "journal"
    folder.mkdir()
    store = Store(server.uri)
    campaign, cell, *rest = some_records(folder)
    store.apply([campaign], folder)
    kept = Journal(folder)
    kept.append(campaign)
    uploader = Uploader(kept, store, store.run_id("c1") or "")
    uploader.start()
    kept.append(cell)
    wait_for(lambda: "cell" in everything(store), 20)
    server.kill()
    for record in rest:
        kept.append(record)
    wait_for(lambda: bool(uploader.trouble), 60)
    server.start()
    wait_for(lambda: not uploader.trouble, 60)
    assert uploader.finish(60)
    found = everything(Store(server.uri))
    assert found["cell"].status == "FINISHED"
    assert found["campaign"].status == "FAILED"
    assert len(store._client.get_metric_history(found["cell"].run_id, "train/loss")) == 2_500


def test_unreachable_is_not_refused(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        Store("http://127.0.0.1:9").apply(some_records(tmp_path), tmp_path)
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" in os.environ
