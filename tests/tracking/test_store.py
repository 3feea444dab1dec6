"""Records into a real tracking store, twice: the second time changes nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import ROOT, Server, wait_for
from tests.faults.proxy import Proxy
from tracking import whereabouts
from tracking.errors import UsageError
from tracking.journal import Journal
from tracking.records import (
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
from tracking.store import NOTE, Store, Unreachable
from tracking.technical import packed
from tracking.upload import IDLE_SECONDS, Uploader


def some_records(folder: Path) -> list[Record]:
    (folder / "cells").mkdir(exist_ok=True)
    (folder / "cells" / "note.txt").write_text("kept")
    points = tuple(Point("train/loss", 1 / (step + 1), step, 1_000 + step) for step in range(2_500))
    return [
        RunOpened("c1", 1_000, "captioning", "campaign", {"kind": "campaign"}),
        RunOpened(
            "r1",
            2_000,
            "captioning",
            "cell",
            {"kind": "cell", "campaign": "run:c1"},
            {"batch_size": "32"},
        ),
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
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path) -> Store:
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_store, tmp_path / "mlflow.db")
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


def test_a_description_keeps_what_its_users_wrote_and_leads_to_the_newest_result(
    store: Store,
) -> None:
    def described(**given: str) -> str:
        store.describe_experiment("captioning", **given)
        return str(store._client.get_experiment(store.experiment_id("captioning")).tags[NOTE])

    assert described(text="A study\n\nIts runs") == "A study\n\nIts runs"
    assert described(newest="Newest result: 0", replace=False).endswith("Newest result: 0")
    assert described(newest="Newest result: 1") == "A study\n\nIts runs\n\nNewest result: 1"
    assert (
        described(text="Another text", newest="Newest result: 2")
        == "A study\n\nIts runs\n\nNewest result: 2"
    )
    assert described(newest="Newest result: without a verdict", replace=False).endswith(
        "Newest result: 2"
    )
    store._client.set_experiment_tag(store.experiment_id("captioning"), NOTE, "Ours, for the paper")
    assert described(text="A study") == "Ours, for the paper"
    assert described(newest="Newest result: 3") == "Ours, for the paper\n\nNewest result: 3"


def test_a_dead_server_costs_seconds(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(UsageError, match="cannot be used"):
        Store("http://127.0.0.1:9").check()
    with pytest.raises(Unreachable):
        Store("http://127.0.0.1:9").apply(some_records(tmp_path), tmp_path)
    assert time.monotonic() - began < 30  # MLflow's default would be four minutes a call


@pytest.fixture
def another() -> Iterator[str]:
    """The number of a process that has just begun."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield str(process.pid)
        process.kill()


def test_runs_of_a_vanished_process_are_closed_and_those_of_a_living_one_kept(
    store: Store, tmp_path: Path, another: str
) -> None:
    began_ms = int((time.time() - 7_200) * 1_000)
    alive, dead = (
        {"kind": "campaign", **whereabouts.here()},
        {"kind": "campaign", **_of_a_dead_process()},
    )
    silent = {"heartbeat": str(int(time.time() - 1.5 * whereabouts.STALE_SECONDS_OF_DEAD))}
    long_silent = {"heartbeat": str(int(time.time() - 1.5 * whereabouts.STALE_SECONDS))}
    killed = {
        "dead": {**dead, **silent},
        "dead, its number given to another process": {
            **dead,
            **silent,
            "pid": another,
            whereabouts.STARTED: "1e9",
        },
        "elsewhere, silent": {**dead, **long_silent, "host": "elsewhere"},
    }
    running = {
        "alive": {**alive, **long_silent},  # its server was away
        "dead, another worker beats": dead,
        "elsewhere, heard": {**alive, **silent, "host": "elsewhere"},
    }
    for number, (name, tags) in enumerate({**killed, **running}.items()):
        own = RunOpened(f"c{number}", began_ms, "captioning", name, tags)
        trial = {"kind": "trial", "campaign": f"run:c{number}"}
        store.apply(
            [own, RunOpened(f"t{number}", began_ms, "captioning", f"{name}: trial", trial)],
            tmp_path,
        )
    bare = {
        "origin": "begun",
        **_of_a_dead_process(),
        **silent,
    }  # killed before it could say what it is
    store._client.create_run(
        store.experiment_id("captioning"), start_time=began_ms, tags=bare, run_name="begun"
    )
    store._client.create_run(store.experiment_id("captioning"), run_name="somebody else's")
    store.close_stale("captioning")
    statuses = {name: run.status for name, run in everything(store).items()}
    assert statuses.pop("begun") == "KILLED"
    assert statuses.pop("somebody else's") == "RUNNING"
    ended, left = (
        [f"{name}{of}" for name in some for of in ("", ": trial")] for some in (killed, running)
    )
    assert statuses == {**dict.fromkeys(ended, "KILLED"), **dict.fromkeys(left, "RUNNING")}
    assert "ended without a message" in everything(store)["dead: trial"].tags["outcome_reason"]


def _of_a_dead_process() -> dict[str, str]:
    told = "import json; from tracking import whereabouts; print(json.dumps(whereabouts.here()))"
    found = subprocess.run(
        [sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return dict(json.loads(found.stdout))


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


def test_a_server_that_takes_calls_and_answers_none_is_not_waited_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracking.upload.PATIENCE_SECONDS", 1.0)
    campaign, cell, *_ = some_records(tmp_path)
    store, kept = Store(server.uri), Journal(tmp_path / "journal")
    store.apply([campaign], tmp_path)
    uploader = Uploader(kept, store, store.run_id("c1") or "")
    uploader.start()
    wait_for(lambda: not uploader.stuck and uploader.up_to_date, 20)
    server.pause()
    kept.append(cell)
    uploader.wake()
    wait_for(lambda: uploader.stuck, 5)
    assert not uploader.trouble, "it has not failed yet"
    server.go_on()
    wait_for(lambda: not uploader.stuck and uploader.up_to_date, 20)
    assert uploader.finish(20)


def test_nothing_is_sent_while_a_cell_is_timed_and_all_of_it_afterwards(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracking.upload.SPARING_SECONDS", 3_600.0)
    campaign, cell, *_ = some_records(tmp_path)
    kept = Journal(tmp_path / "journal")
    store.apply([campaign], tmp_path)
    uploader = Uploader(kept, store, store.run_id("c1") or "")
    kept.append(campaign)
    uploader.sparing = True
    uploader.start()
    wait_for(lambda: uploader.up_to_date, 20)
    time.sleep(IDLE_SECONDS)  # it has looked for more, and waits
    kept.append(cell)
    time.sleep(2 * IDLE_SECONDS)
    assert "cell" not in everything(store)
    uploader.sparing = False
    uploader.wake()
    wait_for(lambda: "cell" in everything(store), 20)
    assert uploader.finish(20)


def test_runs_of_several_experiments_come_page_by_page_each_once(
    store: Store, tmp_path: Path
) -> None:
    opened = [
        RunOpened(f"{place}{i}", i, place, f"{place}{i}")
        for place in ("one", "two")
        for i in range(5)
    ]
    store.apply(opened, tmp_path)
    told: list[tuple[int, int | None]] = []
    names = [
        run.name
        for run in store.runs(
            ["one", "not there", "two"], page=4, progress=lambda *seen: told.append(seen)
        )
    ]
    assert sorted(names) == sorted(record.name for record in opened)
    assert told == [(4, None), (8, None), (10, None)]
    assert len(list(store.runs("two", "attributes.run_name != 'two3'"))) == 4
    assert not list(store.runs("not there"))


def test_a_server_and_its_database_tell_the_same_runs(server: Server, tmp_path: Path) -> None:
    points = tuple(
        Point(key, value, 0, 1)
        for key, value in (("big", math.inf), ("low", -math.inf), ("zero", 0.0), ("tiny", 5e-324))
    )
    more: list[Record] = [
        RunOpened(
            "r2",
            3_000,
            "captioning",
            "é “x”",
            {"empty": "", "kind": "cell"},
            {"nothing": "", "text": "a\nb"},
        ),
        Metrics("r2", points),
    ]
    assert Store(server.uri).apply([*some_records(tmp_path), *more], tmp_path) == []
    over_http, direct = everything(Store(server.uri)), everything(Store(server.backend))
    assert over_http == direct
    assert len(direct) == 3
    assert direct["é “x”"].end_ms is None
    assert direct["cell"].metrics["bad"] == "NaN"


def test_an_experiment_that_is_not_there_is_told_with_those_that_are(store: Store) -> None:
    with pytest.raises(
        UsageError,
        match=r"no experiment 'lenet' on sqlite.*; nothing was recorded there; .*MLFLOW_TRACKING_URI",
    ):
        store.experiment_ids(["lenet"])
    ids = [store.experiment_id(name) for name in ("captioning", "lenet")]
    assert store.experiment_ids(["captioning", "lenet"]) == ids
    with pytest.raises(
        UsageError, match=r"no experiment 'captoining' on sqlite.*did you mean 'captioning'\?"
    ):
        store.experiment_ids(["lenet", "captoining"])
    with pytest.raises(
        UsageError, match=r"no experiment 'x' on sqlite.*; have Default, captioning, lenet$"
    ):
        store.experiment_ids(["x"])
    store._client.delete_experiment(ids[1])
    with pytest.raises(UsageError, match="no experiment 'lenet'"):
        store.experiment_ids(["lenet"])
    with pytest.raises(UsageError, match="experiments restore"):
        store.experiment_id("lenet")


def test_one_file_of_a_run_and_the_history_of_a_metric(server: Server, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "values.parquet").write_bytes(bytes(range(256)) * 1_000)
    opened = [RunOpened(f"r{i}", 1, "captioning", f"r{i}") for i in range(8)]
    kept = [Artifact(record.run, "deep") for record in opened]
    store = Store(server.uri)
    assert (
        store.apply(
            [*opened, *kept, Metrics("r0", (Point("loss", 2.0, 0, 5), Point("loss", 1.0, 1, 6)))],
            tmp_path,
        )
        == []
    )
    ids = [store.run_id(one.run) or "" for one in opened]
    fetched = tmp_path / "fetched"
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda run: store.file(run, "values.parquet", fetched), ids))
    assert len(set(found)) == len(ids)
    assert all(path and path.read_bytes() == bytes(range(256)) * 1_000 for path in found)
    for missing in ((ids[0], "not.there"), ("0" * 32, "values.parquet")):
        assert store.file(*missing, fetched) is None
    assert [point.value for point in store.points(ids[0], "loss")] == [2.0, 1.0]
    assert store.points(ids[0], "not there") == []


# ---- answers that are lost


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    running = Proxy(server.port)
    yield running
    running.close()


def test_a_creation_whose_answer_is_lost_makes_one_run(
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
    assert {
        name: (run.status, run.params, run.metrics)
        for name, run in everything(Store(server.uri)).items()
    } == {name: (run.status, run.params, run.metrics) for name, run in everything(clean).items()}
    assert len(list(Store(server.uri).runs("captioning"))) == 2


def test_a_run_that_a_late_creation_left_behind_ends_and_the_one_with_the_values_stays(
    store: Store, tmp_path: Path
) -> None:
    opened, *rest = some_records(tmp_path)[1:7]
    assert isinstance(opened, RunOpened)
    store.apply([RunOpened("c1", 1_000, "captioning", "campaign"), opened], tmp_path)
    late = store._client.create_run(
        store.experiment_id("captioning"), tags=packed({"origin": "r1"})
    ).info.run_id
    again = Store(store.uri)
    again.expect([opened])  # as an uploader does that begins in the middle of a journal
    assert again.apply(rest, tmp_path) == []
    assert again.run_id("r1") == store.run_id("r1") != late
    assert everything(store)["cell"].status == "FINISHED"
    assert store._client.get_run(late).info.lifecycle_stage == "deleted"
