"""Records into a real tracking store, twice: the second time changes nothing."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import mlflow
import pytest

from tests.conftest import Server, wait_for
from tests.faults.proxy import Proxy
from tests.tracking.conftest import uploading
from tracking import whereabouts
from tracking.errors import ErrorCode, UsageError
from tracking.links import NEWEST, describe_experiment, source
from tracking.reader import Unreachable
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
from tracking.store import NOTE, Store
from tracking.technical import pack_tags


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


def runs_by_name(store: Store, page: int = 500) -> dict[str, StoredRun]:
    """Return all runs; NaN as text, so that equal runs compare equal."""
    runs = {}
    for run in store.runs("captioning", page=page):
        metrics = {key: "NaN" if math.isnan(value) else value for key, value in run.metrics.items()}
        runs[run.name] = dataclasses.replace(run, metrics=metrics)  # type: ignore[arg-type]
    return runs


def test_description_has_the_users_text_and_the_newest_result(store: Store) -> None:
    def describe(**texts: Any) -> list[str]:
        describe_experiment(store, "captioning", **texts)
        return store.experiment_tags("captioning")[NOTE].split("\n\n")

    results = [f"{NEWEST}: {number}" for number in range(4)]
    assert describe(text="A study\n\nIts runs") == ["A study", "Its runs"]
    assert describe(newest=results[0], replace=False)[-1] == results[0]
    assert describe(text="Another", newest=results[1]) == ["A study", "Its runs", results[1]]
    assert describe(newest=results[2], replace=False)[-1] == results[1]
    store.tag_experiment("captioning", {NOTE: "For the paper"})
    assert describe(text="A study", newest=results[3]) == ["For the paper", results[3]]


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
    with subprocess.Popen(["true"]) as process:
        return {**whereabouts.process_tags(), "pid": str(process.pid)}


def test_runs_of_vanished_processes_are_closed(store: Store, tmp_path: Path) -> None:
    began_ms, campaign = int((time.time() - 7_200) * 1_000), {"kind": "campaign"}
    alive, dead = {**campaign, **whereabouts.process_tags()}, {**campaign, **dead_process()}
    silent, long_silent = (
        {"heartbeat": str(int(time.time() - 1.5 * seconds))}
        for seconds in (whereabouts.STALE_SECONDS_OF_DEAD, whereabouts.STALE_SECONDS)
    )
    reused = {"pid": str(os.getpid()), whereabouts.STARTED: "1e9"}
    cases = {
        "dead": ("KILLED", {**dead, **silent}),
        "process id reused": ("KILLED", {**dead, **silent, **reused}),
        "elsewhere, silent": ("KILLED", {**dead, **long_silent, "host": "elsewhere"}),
        "alive": ("RUNNING", {**alive, **long_silent}),  # its server was away
        "dead, another worker beats": ("RUNNING", dead),
        "elsewhere, beats": ("RUNNING", {**alive, **silent, "host": "elsewhere"}),
    }
    expected = {"begun": "KILLED", "another user's": "RUNNING"}
    for number, (name, (status, tags)) in enumerate(cases.items()):
        trial = {"kind": "trial", "campaign": f"run:c{number}"}
        runs = {name: (f"c{number}", tags), f"{name}: trial": (f"t{number}", trial)}
        records = [
            RunOpened(run, began_ms, "captioning", title, of) for title, (run, of) in runs.items()
        ]
        store.apply(records, tmp_path)
        expected |= dict.fromkeys(runs, status)
    # killed before its kind was recorded
    tags = {"origin": "begun", **dead_process(), **silent}
    create, place = store._client.create_run, store.experiment_id("captioning")
    create(place, start_time=began_ms, tags=tags, run_name="begun")
    create(place, run_name="another user's")
    store.close_stale("captioning")
    stored = runs_by_name(store)
    assert {name: run.status for name, run in stored.items()} == expected
    assert stored["dead: trial"].tags["outcome_reason"] == VANISHED


def test_uploader_outlives_a_server_that_is_silent_or_dead(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracking.upload.LONGEST_PAUSE_SECONDS", 2.0)
    monkeypatch.setattr("tracking.upload.PATIENCE_SECONDS", 1.0)
    (folder := tmp_path / "journal").mkdir()
    campaign, cell, *rest = some_records(folder)
    assert isinstance(campaign, RunOpened)
    journal, uploader = uploading(Store(server.uri), folder, campaign)
    uploader.start()
    wait_for(lambda: not uploader.stuck and uploader.up_to_date, 20)
    server.pause()
    journal.append(cell)
    uploader.wake()
    wait_for(lambda: uploader.stuck, 5)
    assert not uploader.trouble, "it has not failed yet"
    server.go_on()
    wait_for(lambda: not uploader.stuck and uploader.up_to_date, 20)
    server.kill()
    for record in rest:
        journal.append(record)
    wait_for(lambda: bool(uploader.trouble), 60)
    server.start()
    wait_for(lambda: not uploader.trouble, 60)
    assert uploader.finish(60)
    runs = runs_by_name(Store(server.uri))
    assert (runs["cell"].status, runs["campaign"].status) == ("FINISHED", "FAILED")
    assert len(Store(server.uri).points(runs["cell"].run_id, "train/loss")) == 2_500


def test_records_are_sent_after_a_cell_was_timed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracking.upload.SPARING_SECONDS", 3_600.0)
    monkeypatch.setattr("tracking.upload.IDLE_SECONDS", 0.2)
    campaign, cell, *_ = some_records(tmp_path)
    assert isinstance(campaign, RunOpened)
    journal, uploader = uploading(store, tmp_path / "journal", campaign)
    uploader.sparing = True
    uploader.start()
    wait_for(lambda: uploader.up_to_date, 20)
    time.sleep(0.2)  # it has looked for more, and waits
    journal.append(cell)
    time.sleep(0.5)
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


def test_records_sent_twice_over_http_and_into_the_database_are_there_once(
    server: Server, tmp_path: Path
) -> None:
    values = {"big": math.inf, "low": -math.inf, "zero": 0.0, "tiny": 5e-324}
    points = tuple(Point(key, value, 0, 1) for key, value in values.items())
    tags, params = {"empty": "", "kind": "cell"}, {"empty": "", "text": "a\nb"}
    details = (Point("exact", 0.1 + 0.2, 0, 1), Point("endless", math.inf, 0, 1))
    records = [
        *some_records(tmp_path),
        RunOpened("r2", 3_000, "captioning", "é “x”", tags, params),
        Metrics("r2", points),
        Metrics("r2", details, detail=True),
    ]
    remote, direct = Store(server.uri), Store(server.backend)
    assert [store.apply(records, tmp_path) for store in (remote, direct)] == [[], []]
    runs = runs_by_name(direct)
    assert runs == runs_by_name(remote, page=1)
    assert len(runs) == 3
    cell, campaign, run = runs["cell"], runs["campaign"], runs["é “x”"]
    assert (cell.status, cell.params) == ("FINISHED", {"batch_size": "32"})
    assert cell.tags["campaign"] == campaign.run_id
    assert cell.metrics == {"train/loss": 1 / 2_500, "bad": "NaN"}
    history = remote.points(cell.run_id, "train/loss")
    assert [point.step for point in history] == list(range(2_500))
    assert (campaign.status, campaign.tags["outcome_reason"]) == ("FAILED", "out of luck")
    assert (run.end_ms, run.params) == (None, params)
    assert [run.metrics[key] for key in ("exact", "endless")] == [0.1 + 0.2, math.inf]
    assert direct._client.get_run(run.run_id).data.metrics.keys() == values.keys()
    path = remote.file(cell.run_id, "note.txt", tmp_path / "fetched")
    assert path
    assert path.read_text() == "measured"
    assert remote.file(cell.run_id, "missing", tmp_path) is None
    assert remote.file("0" * 32, "note.txt", tmp_path) is None
    assert remote.points(cell.run_id, "missing") == []


def test_missing_experiment_is_refused_with_those_that_exist(store: Store) -> None:
    def refuse(name: str, call: Callable[[str], object], code: ErrorCode) -> str:
        with pytest.raises(UsageError) as error:
            call(name)
        assert error.value.code is code
        return str(error.value)

    def read(name: str) -> object:
        return store.experiment_ids(["captioning", name])

    ids = [store.experiment_id(name) for name in ("captioning", "lenet")]
    assert read("lenet") == ids
    for name, right in {"lennet": ["lenet"], "x": ["lenet", "captioning"]}.items():
        text = refuse(name, read, ErrorCode.UNKNOWN_NAME)
        assert all(each in text for each in (f"'{name}'", "MLFLOW_TRACKING_URI", *right))
    store._client.delete_experiment(ids[1])
    refuse("lenet", read, ErrorCode.UNKNOWN_NAME)
    assert f"-x {ids[1]}" in refuse("lenet", store.experiment_id, ErrorCode.CONFLICT)


# ---- answers that are lost


def test_creation_whose_answer_is_lost_makes_one_run(
    server: Server, tmp_path: Path, empty_store: Path
) -> None:
    records = some_records(tmp_path)
    with closing(Proxy(server.port)) as proxy:
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


def test_source_of_a_data_set_is_one_that_mlflow_reads(store: Store, tmp_path: Path) -> None:
    names = {"/data/flickr8k": ("local", "uri"), "drawn": ("code", "description")}
    used = [DatasetUsed("r2", name, "d1", name, "{}", "{}", "training") for name in names]
    store.apply([RunOpened("r2", 1, "captioning", "cell"), *used], tmp_path)
    inputs = store._client.get_run(store.run_id("r2") or "").inputs.dataset_inputs
    sources = {each.dataset.name: mlflow.data.get_source(each) for each in inputs}
    for name, (kind, key) in names.items():
        content = sources[name].to_dict()
        assert sources[name]._get_source_type() == kind
        assert {**content, **content.get("tags", {})}[key] == name


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
    monkeypatch.setattr("tracking.links.ROOT", tmp_path)
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
