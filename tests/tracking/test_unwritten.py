"""Database that takes no writes for a while, and a record that it never takes."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from experiments.cli import main as command_line
from tests.conftest import Place, Server, set_toy_costs, titled, wait_for
from tests.faults.test_campaign import records as recorded
from tests.tracking.postgres import Postgres
from tracking import journal, limits
from tracking.journal import Journal
from tracking.records import DatasetUsed, Metrics, Point, Record, RunClosed, RunOpened, Tags
from tracking.store import PROBE, Store
from tracking.upload import Uploader

POINTS = 50


def execute(database: str, *statements: str) -> None:
    connection = psycopg2.connect(database.replace("postgresql+psycopg2://", "postgresql://"))
    connection.autocommit = True
    with connection.cursor() as cursor:
        for statement in ("SET default_transaction_read_only = off", *statements):
            cursor.execute(statement)
    connection.close()


def read_only(server: Server, how: str) -> None:
    """Set the whole database server as a standby is, or back."""
    setting = f"ALTER SYSTEM SET default_transaction_read_only = {how}"
    execute(server.backend, setting, "SELECT pg_reload_conf()")
    time.sleep(0.5)


@pytest.fixture(scope="module")
def shared(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server for all tests, each of which has a separate experiment."""
    started = Server(tmp_path_factory.mktemp("unwritten"), postgres.database("unwritten"))
    yield started
    started.kill()


@pytest.fixture
def server(shared: Server) -> Iterator[Server]:
    yield shared
    read_only(shared, "off")


def cells(experiment: str, numbers: range) -> list[Record]:
    points = tuple(Point("train/loss", 1 / step, step, step) for step in range(1, POINTS + 1))
    records: list[Record] = []
    for run in (f"r{number}" for number in numbers):
        records += [
            RunOpened(run, 1, experiment, f"cell {run}", {"kind": "cell"}, {"batch_size": "32"}),
            Metrics(run, points),
            Tags(run, {"machine": "m"}),
            DatasetUsed(run, "digits", "abc", "folder", "{}", "{}", "training"),
            RunClosed(run, 2, "ok"),
        ]
    return records


def stored_cells(store: Store, experiment: str) -> dict[str, tuple[str, int, str | None]]:
    """Return status, number of points and a tag of each cell."""
    runs = [run for run in store.runs(experiment) if run.name.startswith("cell")]
    counts = [len(store.points(run.run_id, "train/loss")) for run in runs]
    return {
        run.name: (run.status, count, run.tags.get("machine"))
        for run, count in zip(runs, counts, strict=True)
    }


def test_read_only_database_is_waited_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracking.upload.LONGEST_PAUSE_SECONDS", 1.0)
    store, records = Store(server.uri), Journal(tmp_path / "journal")
    campaign = RunOpened("c1", 1, "a while", "campaign", {"kind": "campaign"})
    assert store.apply([campaign], tmp_path) == []
    uploader = Uploader(records, store, store.run_id("c1") or "")
    uploader.start()
    for record in cells("a while", range(2)):
        records.append(record)
    wait_for(lambda: uploader.up_to_date, 30)
    read_only(server, "on")
    for record in cells("a while", range(2, 5)):
        records.append(record)
    wait_for(lambda: bool(uploader.trouble), 30)
    assert uploader.refused == []
    assert len(stored_cells(store, "a while")) == 2
    read_only(server, "off")
    records.append(RunClosed("c1", 3, "ok"))
    wait_for(lambda: uploader.up_to_date, 60)
    assert uploader.finish(60)
    assert uploader.refused == []
    expected = {f"cell r{number}": ("FINISHED", POINTS, "m") for number in range(5)}
    assert stored_cells(store, "a while") == expected
    assert {run.status for run in store.runs("a while")} == {"FINISHED"}


def test_servers_bounds_are_known_before(server: Server, tmp_path: Path) -> None:
    """Send keys, lengths and numbers that PostgreSQL would answer with an error."""
    odd, clean = "a\0b\ud800c", "a\ufffdb\ufffdc"
    tags, params = {"kind": "cell", odd: "x", "odd": odd}, {"k" * 251: "x", "p": odd}
    points = (("m", 2**63, 1), ("m", 0, -1), ("..", 0, 1), ("m", -3, 1))
    records: list[Record] = [
        RunOpened("r0", 1, "odd", "n" * 300 + odd, tags, params),
        Tags("r0", {"t" * 250: "v" * 9_000, "/t": "x", "ok": "yes"}),
        Metrics("r0", tuple(Point(key, 5.0, step, time_ms) for key, step, time_ms in points)),
        DatasetUsed("r0", "n", "d" * 37, "s", "{}", "{}", "training"),
        RunOpened("r1", 1, "e" * 257, "run"),
        RunClosed("r0", 2, "failed", odd),
    ]
    store = Store(server.uri)
    refused = store.apply(records, tmp_path)
    assert len(refused) == 8, refused
    (run,) = store.runs("odd")
    assert run.status == "FAILED"
    assert (run.name, run.tags["odd"], run.params) == ("n" * 250, clean, {"p": clean})
    assert (run.tags["ok"], len(run.tags["t" * 250])) == ("yes", 8_000)
    assert run.metrics == {"m": 5.0}


def test_campaign_on_a_read_only_database_names_the_command_that_completes_it(
    place: Place, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Place(place.folder, place.cache, server.uri)
    set_toy_costs(monkeypatch, step=0.2)
    parent = remote.start(
        frameworks="toy", data="synthetic", vocabulary="60", length="8", epochs="6", blocks="1"
    )
    wait_for(lambda: any(isinstance(record, Metrics) for record in recorded(remote)), 240)
    read_only(server, "on")
    output, _ = parent.communicate(timeout=280)
    assert parent.returncode == 3, output
    assert "Traceback" not in output
    advice = re.search(r"! \d+ records wait: .* (\S*python\S* -m experiments replay .*)", output)
    assert advice, output
    assert "refused" not in output
    assert "RUNNING" in {run.status for run in Store(server.uri).runs("captioning")}
    command = [sys.executable, *shlex.split(advice[1])[1:]]
    waiting = remote.call(*command)
    assert (waiting.returncode, advice[1] in waiting.stdout) == (1, True), waiting.stdout
    read_only(server, "off")
    done = remote.call(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    store = Store(server.uri)
    runs = {titled(run): run for run in store.runs("captioning")}
    assert {run.status for run in runs.values()} == {"FINISHED"}
    (folder,) = journal.campaigns(remote.journal)
    metrics = [record for record in journal.read_all(folder) if isinstance(record, Metrics)]
    keys = [point.key for record in metrics for point in record.points]
    losses = store.points(runs["toy · block 1"].run_id, "train/loss")
    assert len(losses) == keys.count("train/loss") == 6


POISONED = """CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN
    IF NEW.key = 'poison' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW;
    END $$ LANGUAGE plpgsql"""


def test_record_that_is_never_written_is_set_aside_and_sent_again_by_replay(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trigger = "CREATE TRIGGER refuse BEFORE INSERT ON metrics FOR EACH ROW EXECUTE FUNCTION"
    execute(server.backend, POISONED, f"{trigger} refuse()")
    folder = tmp_path / "journal"
    store, records = Store(server.uri), Journal(folder)
    opened, *rest = cells("poisoned", range(1))
    metrics = [Metrics("r0", (Point(key, 1, 0, 1),)) for key in ("a", "poison")]
    for record in (opened, *metrics, *rest):
        records.append(record)
    store.apply([opened], folder)
    uploader = Uploader(records, store, store.run_id("r0") or "")
    uploader.start()
    assert uploader.finish(120)
    (line,) = uploader.refused
    assert line.startswith("Metrics of r0: ")
    assert "not this one" in line
    assert stored_cells(store, "poisoned") == {"cell r0": ("FINISHED", POINTS, "m")}
    assert PROBE not in next(iter(store.runs("poisoned"))).tags

    execute(server.backend, "DROP TRIGGER refuse ON metrics")
    assert command_line.main(["replay", f"--journal={folder}"]) == 0, capsys.readouterr().out
    (run,) = store.runs("poisoned")
    assert run.metrics == {"a": 1.0, "poison": 1.0, "train/loss": 1 / POINTS}


def test_bounds_are_those_of_the_server() -> None:
    from mlflow.store.tracking.dbmodels import models
    from mlflow.utils import validation

    assert limits.KEY_CHARACTERS == validation.MAX_ENTITY_KEY_LENGTH
    assert models.SqlRun.name.type.length == limits.RUN_NAME_CHARACTERS
    assert models.SqlExperiment.name.type.length == limits.EXPERIMENT_NAME_CHARACTERS
    assert limits.DATASET_CHARACTERS == {
        "name": validation.MAX_DATASET_NAME_SIZE,
        "digest": validation.MAX_DATASET_DIGEST_SIZE,
        "source": validation.MAX_DATASET_SOURCE_SIZE,
        "schema": validation.MAX_DATASET_SCHEMA_SIZE,
        "profile": validation.MAX_DATASET_PROFILE_SIZE,
        "context": validation.MAX_INPUT_TAG_VALUE_SIZE,
    }
    for key in ("a", "a/b", "val/bleu1", "a b:c-d.e_f", "é", "a" * 250):
        assert not limits.key_trouble(key)
        validation._validate_metric_name(key)
    for key in ("", ".", "..", "/a", "a/", "a//b", "a/../b", "a(b)", "a\nb", "a" * 251):
        assert limits.key_trouble(key)
