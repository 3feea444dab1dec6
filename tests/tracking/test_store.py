"""Records into a real tracking store, twice: the second time changes nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlflow
import pytest

from tests.conftest import ROOT, Server, wait_for
from tests.faults.proxy import Proxy
from tracking import whereabouts
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Journal
from tracking.records import (
    VANISHED,
    Artifact,
    DatasetUsed,
    Metrics,
    Point,
    Record,
    RunClosed,
    RunOpened,
    StoredRun,
    Tags,
)
from tracking.store import NEWEST, NOTE, Store, Unreachable, source
from tracking.technical import pack_tags
from tracking.upload import IDLE_SECONDS, Uploader


def some_records(folder: Path) -> list[Record]:
    (folder / "cells").mkdir(exist_ok=True)
    (folder / "cells" / "note.txt").write_text("measured")
    points = tuple(Point("train/loss", 1 / (step + 1), step, 1_000 + step) for step in range(2_500))
    cell = {"kind": "cell", "campaign": "run:c1"}
    return [
        RunOpened("c1", 1_000, "captioning", "campaign", {"kind": "campaign"}),
        RunOpened("r1", 2_000, "captioning", "cell", cell, {"batch_size": "32"}),
        Metrics("r1", (*points, Point("bad", math.nan, 0, 1))),
        Tags("r1", {"machine": "abc"}),
        Artifact("r1", "cells/note.txt"),
        DatasetUsed("r1", "scenes", "d1", "folder", "{}", "{}", "training"),
        RunClosed("r1", 9_000, "ok"),
        RunClosed("c1", 9_500, "failed", "out of luck"),
    ]


def runs_by_name(store: Store) -> dict[str, StoredRun]:
    """Return all runs; NaN as text, so that equal runs compare equal."""
    runs = {}
    for run in store.runs("captioning"):
        metrics = {key: "NaN" if math.isnan(value) else value for key, value in run.metrics.items()}
        runs[run.name] = dataclasses.replace(run, metrics=metrics)  # type: ignore[arg-type]
    return runs


def test_applying_twice_from_two_processes_changes_nothing(store: Store, tmp_path: Path) -> None:
    records = some_records(tmp_path)
    assert store.apply(records, tmp_path) == []
    first = runs_by_name(store)
    assert Store(store.uri).apply(records, tmp_path) == []
    second = runs_by_name(store)
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
    assert second["campaign"].tags["outcome_reason"] == "out of luck"


def test_description_has_the_users_text_and_the_newest_result(store: Store) -> None:
    def describe(**texts: str) -> list[str]:
        store.describe_experiment("captioning", **texts)
        experiment = store._client.get_experiment(store.experiment_id("captioning"))
        return str(experiment.tags[NOTE]).split("\n\n")

    results = [f"{NEWEST}: {number}" for number in range(5)]
    assert describe(text="A study\n\nIts runs") == ["A study", "Its runs"]
    assert describe(newest=results[0], replace=False)[-1] == results[0]
    assert describe(newest=results[1]) == ["A study", "Its runs", results[1]]
    assert describe(text="Another", newest=results[2]) == ["A study", "Its runs", results[2]]
    assert describe(newest=results[3], replace=False)[-1] == results[2]
    store._client.set_experiment_tag(store.experiment_id("captioning"), NOTE, "For the paper")
    assert describe(text="A study") == ["For the paper"]
    assert describe(newest=results[4]) == ["For the paper", results[4]]


def test_dead_server_costs_seconds(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(UsageError) as error:
        Store("http://127.0.0.1:9").check()
    assert error.value.code is ErrorCode.UNREACHABLE
    with pytest.raises(Unreachable):
        Store("http://127.0.0.1:9").apply(some_records(tmp_path), tmp_path)
    assert time.monotonic() - began < 30  # MLflow's default would be four minutes a call


def dead_process() -> dict[str, str]:
    """Return the tags of a process that has ended."""
    script = (
        "import json; from tracking import whereabouts; "
        "print(json.dumps(whereabouts.process_tags()))"
    )
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return dict(json.loads(output))


def test_runs_of_vanished_processes_are_closed(store: Store, tmp_path: Path) -> None:
    began_ms, campaign = int((time.time() - 7_200) * 1_000), {"kind": "campaign"}
    alive, dead = {**campaign, **whereabouts.process_tags()}, {**campaign, **dead_process()}
    silent, long_silent = (
        {"heartbeat": str(int(time.time() - 1.5 * seconds))}
        for seconds in (whereabouts.STALE_SECONDS_OF_DEAD, whereabouts.STALE_SECONDS)
    )
    vanished = {
        "dead": {**dead, **silent},
        "process id reused": {
            **dead,
            **silent,
            "pid": str(os.getpid()),
            whereabouts.STARTED: "1e9",
        },
        "elsewhere, silent": {**dead, **long_silent, "host": "elsewhere"},
    }
    running = {
        "alive": {**alive, **long_silent},  # its server was away
        "dead, another worker beats": dead,
        "elsewhere, beats": {**alive, **silent, "host": "elsewhere"},
    }
    expected = {}
    for number, (name, tags) in enumerate({**vanished, **running}.items()):
        trial = {"kind": "trial", "campaign": f"run:c{number}"}
        records = [
            RunOpened(f"c{number}", began_ms, "captioning", name, tags),
            RunOpened(f"t{number}", began_ms, "captioning", f"{name}: trial", trial),
        ]
        store.apply(records, tmp_path)
        status = "KILLED" if name in vanished else "RUNNING"
        expected |= {name: status, f"{name}: trial": status}
    # killed before its kind was recorded
    tags = {"origin": "begun", **dead_process(), **silent}
    create, place = store._client.create_run, store.experiment_id("captioning")
    create(place, start_time=began_ms, tags=tags, run_name="begun")
    create(place, run_name="another user's")
    store.close_stale("captioning")
    runs = runs_by_name(store)
    expected |= {"begun": "KILLED", "another user's": "RUNNING"}
    assert {name: run.status for name, run in runs.items()} == expected
    assert runs["dead: trial"].tags["outcome_reason"] == VANISHED


def test_records_written_while_the_server_is_dead_arrive_later(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracking.upload.LONGEST_PAUSE_SECONDS", 2.0)
    folder = tmp_path / "journal"
    folder.mkdir()
    store = Store(server.uri)
    campaign, cell, *rest = some_records(folder)
    store.apply([campaign], folder)
    journal = Journal(folder)
    journal.append(campaign)
    uploader = Uploader(journal, store, store.run_id("c1") or "")
    uploader.start()
    journal.append(cell)
    wait_for(lambda: "cell" in runs_by_name(store), 20)
    server.kill()
    for record in rest:
        journal.append(record)
    wait_for(lambda: bool(uploader.trouble), 60)
    server.start()
    wait_for(lambda: not uploader.trouble, 60)
    assert uploader.finish(60)
    runs = runs_by_name(Store(server.uri))
    assert (runs["cell"].status, runs["campaign"].status) == ("FINISHED", "FAILED")
    assert len(store.points(runs["cell"].run_id, "train/loss")) == 2_500


def test_server_without_answers_is_not_waited_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracking.upload.PATIENCE_SECONDS", 1.0)
    campaign, cell, *_ = some_records(tmp_path)
    store, journal = Store(server.uri), Journal(tmp_path / "journal")
    store.apply([campaign], tmp_path)
    uploader = Uploader(journal, store, store.run_id("c1") or "")
    uploader.start()
    wait_for(lambda: not uploader.stuck and uploader.up_to_date, 20)
    server.pause()
    journal.append(cell)
    uploader.wake()
    wait_for(lambda: uploader.stuck, 5)
    assert not uploader.trouble, "it has not failed yet"
    server.go_on()
    wait_for(lambda: not uploader.stuck and uploader.up_to_date, 20)
    assert uploader.finish(20)


def test_records_are_sent_after_a_cell_was_timed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracking.upload.SPARING_SECONDS", 3_600.0)
    campaign, cell, *_ = some_records(tmp_path)
    journal = Journal(tmp_path / "journal")
    store.apply([campaign], tmp_path)
    uploader = Uploader(journal, store, store.run_id("c1") or "")
    journal.append(campaign)
    uploader.sparing = True
    uploader.start()
    wait_for(lambda: uploader.up_to_date, 20)
    time.sleep(IDLE_SECONDS)  # it has looked for more, and waits
    journal.append(cell)
    time.sleep(2 * IDLE_SECONDS)
    assert "cell" not in runs_by_name(store)
    uploader.sparing = False
    uploader.wake()
    wait_for(lambda: "cell" in runs_by_name(store), 20)
    assert uploader.finish(20)


def test_runs_of_several_experiments_come_page_by_page(store: Store, tmp_path: Path) -> None:
    names = [(place, f"{place}{number}") for place in ("one", "two") for number in range(5)]
    store.apply([RunOpened(name, 1, place, name) for place, name in names], tmp_path)
    counts: list[int] = []
    places = ["one", "missing", "two"]
    runs = list(store.runs(places, page=4, progress=lambda count, _: counts.append(count)))
    assert sorted(run.name for run in runs) == [name for _, name in names]
    assert counts == [4, 8, 10]
    assert len(list(store.runs("two", "attributes.run_name != 'two3'"))) == 4
    assert not list(store.runs("missing"))


def test_server_and_database_return_the_same_runs(server: Server, tmp_path: Path) -> None:
    values = {"big": math.inf, "low": -math.inf, "zero": 0.0, "tiny": 5e-324}
    points = tuple(Point(key, value, 0, 1) for key, value in values.items())
    tags, params = {"empty": "", "kind": "cell"}, {"empty": "", "text": "a\nb"}
    more = [RunOpened("r2", 3_000, "captioning", "é “x”", tags, params), Metrics("r2", points)]
    details = (Point("exact", 0.1 + 0.2, 0, 1), Point("endless", math.inf, 0, 1))
    more.append(Metrics("r2", details, detail=True))
    assert Store(server.uri).apply([*some_records(tmp_path), *more], tmp_path) == []
    over_http, direct = runs_by_name(Store(server.uri)), runs_by_name(Store(server.backend))
    assert over_http == direct
    assert len(direct) == 3
    assert direct["é “x”"].end_ms is None
    assert direct["cell"].metrics["bad"] == "NaN"
    run = direct["é “x”"]
    assert [run.metrics[key] for key in ("exact", "endless")] == [0.1 + 0.2, math.inf]
    shown = Store(server.backend)._client.get_run(run.run_id).data.metrics
    assert shown.keys() == values.keys()


def test_missing_experiment_is_refused_with_those_that_exist(store: Store) -> None:
    def refuse(name: str) -> str:
        with pytest.raises(UsageError) as error:
            store.experiment_ids(["captioning", name])
        assert error.value.code is ErrorCode.UNKNOWN_NAME
        return str(error.value)

    ids = [store.experiment_id(name) for name in ("captioning", "lenet")]
    assert store.experiment_ids(["captioning", "lenet"]) == ids
    text = refuse("lennet")
    assert all(name in text for name in ("'lennet'", "lenet", "captioning", "MLFLOW_TRACKING_URI"))
    store._client.delete_experiment(ids[1])
    refuse("lenet")
    with pytest.raises(UsageError) as error:
        store.experiment_id("lenet")
    assert error.value.code is ErrorCode.CONFLICT
    assert f"mlflow experiments restore -x {ids[1]}" in str(error.value)


def test_files_of_runs_and_the_history_of_a_metric(server: Server, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    content = bytes(range(256)) * 1_000
    (tmp_path / "deep" / "values.parquet").write_bytes(content)
    names = [f"r{number}" for number in range(8)]
    records: list[Record] = [RunOpened(name, 1, "captioning", name) for name in names]
    records += [Artifact(name, "deep") for name in names]
    records.append(Metrics("r0", (Point("loss", 2.0, 0, 5), Point("loss", 1.0, 1, 6))))
    store = Store(server.uri)
    assert store.apply(records, tmp_path) == []
    ids, target = [store.run_id(name) or "" for name in names], tmp_path / "fetched"
    with ThreadPoolExecutor(8) as threads:
        paths = list(threads.map(lambda run: store.file(run, "values.parquet", target), ids))
    assert len(set(paths)) == len(ids)
    assert all(path and path.read_bytes() == content for path in paths)
    assert store.file(ids[0], "missing", target) is None
    assert store.file("0" * 32, "values.parquet", target) is None
    assert [point.value for point in store.points(ids[0], "loss")] == [2.0, 1.0]
    assert store.points(ids[0], "missing") == []


# ---- answers that are lost


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    running = Proxy(server.port)
    yield running
    running.close()


def test_creation_whose_answer_is_lost_makes_one_run(
    proxy: Proxy, server: Server, tmp_path: Path, empty_store: Path
) -> None:
    records = some_records(tmp_path)
    store = Store(proxy.uri)
    for request in ("runs/create", "runs/log-batch"):
        proxy.lose_answer(f"^P[A-Z]+ /api/2.0/mlflow[a-z-]*/{request}")
        assert store.apply(records, tmp_path) == []
    assert proxy.lost == 2
    clean = Store(f"sqlite:///{shutil.copy(empty_store, tmp_path / 'clean.db')}")
    clean.apply(records, tmp_path)
    results = [
        {name: (run.status, run.params, run.metrics) for name, run in runs_by_name(place).items()}
        for place in (Store(server.uri), clean)
    ]
    assert results[0] == results[1]
    assert len(list(Store(server.uri).runs("captioning"))) == 2


def test_run_that_a_late_creation_left_behind_is_deleted(store: Store, tmp_path: Path) -> None:
    opened, *rest = some_records(tmp_path)[1:7]
    assert isinstance(opened, RunOpened)
    store.apply([RunOpened("c1", 1_000, "captioning", "campaign"), opened], tmp_path)
    late = store._client.create_run(
        store.experiment_id("captioning"), tags=pack_tags({"origin": "r1"})
    ).info.run_id
    again = Store(store.uri)
    again.expect([opened])  # as an uploader does that begins in the middle of a journal
    assert again.apply(rest, tmp_path) == []
    assert again.run_id("r1") == store.run_id("r1") != late
    assert runs_by_name(store)["cell"].status == "FINISHED"
    assert store._client.get_run(late).info.lifecycle_stage == "deleted"


@pytest.mark.parametrize(
    ("place", "kind", "content"),
    [("/data/flickr8k", "local", {"uri": "/data/flickr8k"}), ("drawn", "code", "drawn")],
)
def test_source_of_a_data_set_is_one_that_mlflow_reads(
    store: Store, tmp_path: Path, place: str, kind: str, content: object
) -> None:
    used = DatasetUsed("r2", "pictures", "d1", place, "{}", "{}", "training")
    store.apply([RunOpened("r2", 1, "captioning", "cell"), used], tmp_path)
    run = next(store.runs("captioning"))
    (stored,) = store._client.get_run(run.run_id).inputs.dataset_inputs
    source = mlflow.data.get_source(stored)
    assert source._get_source_type() == kind
    assert content in (source.to_dict(), source.to_dict().get("tags", {}).get("description"))


def test_source_names_the_code_without_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (
        ("init", "-q", "-b", "topic"),
        ("commit", "-q", "--allow-empty", "-m", "first"),
        ("remote", "add", "origin", "https://dana:secret@example.org/repo.git"),
    ):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr("tracking.store.ROOT", tmp_path)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    tags = source("lenet", "abc+changes.12", "x" * 9_000)
    assert tags.pop("mlflow.user")
    assert len(tags.pop("mlflow.source.git.diff")) == 5_000
    assert tags == {
        "mlflow.source.name": "evenhand lenet",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": "abc",
        "mlflow.source.git.dirty": "true",
        "mlflow.source.git.branch": "topic",
        "mlflow.source.git.repoURL": "https://example.org/repo.git",
    }
    monkeypatch.setenv("MLFLOW_RUN_ID", "1")
    tags = source("lenet", "abc")
    assert (tags["mlflow.source.type"], tags["mlflow.source.git.dirty"]) == ("PROJECT", "false")
    assert "mlflow.source.git.diff" not in tags
    assert "mlflow.source.git.commit" not in source("lenet", "")
