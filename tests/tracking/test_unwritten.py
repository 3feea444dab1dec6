"""Database that takes no writes for a while, and a record that it never takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from experiments.cli import main as command_line
from tests.conftest import Server, wait_for
from tests.tracking.conftest import uploading
from tests.tracking.postgres import Postgres
from tracking import limits
from tracking.records import DatasetUsed, Metrics, Point, Record, RunClosed, RunOpened, Tags
from tracking.store import PROBE, Store


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
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server for all tests, each of which has a separate experiment."""
    started = Server(tmp_path_factory.mktemp("unwritten"), postgres.database("unwritten"))
    yield started
    read_only(started, "off")
    started.kill()


def cell(experiment: str) -> list[Record]:
    return [
        RunOpened("r0", 1, experiment, "cell", {"kind": "cell"}, {"batch_size": "32"}),
        Metrics("r0", (Point("train/loss", 0.5, 1, 1), Point("train/loss", 0.25, 2, 2))),
        Tags("r0", {"machine": "m"}),
        DatasetUsed("r0", "digits", "abc", "folder", "{}", "{}", "training"),
        RunClosed("r0", 2, "ok"),
    ]


def stored_cells(store: Store, experiment: str) -> list[tuple[str, dict[str, float], str | None]]:
    """Return status, metrics and a tag of each cell."""
    runs = store.runs(experiment, "attributes.run_name = 'cell'")
    return [(run.status, dict(run.metrics), run.tags.get("machine")) for run in runs]


STORED = ("FINISHED", {"train/loss": 0.25}, "m")


def test_read_only_database_is_waited_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracking.upload.LONGEST_PAUSE_SECONDS", 1.0)
    store = Store(server.uri)
    campaign = RunOpened("c1", 1, "a while", "campaign", {"kind": "campaign"})
    records, uploader = uploading(store, tmp_path / "journal", campaign)
    uploader.start()
    wait_for(lambda: uploader.up_to_date, 30)
    read_only(server, "on")
    for record in (*cell("a while"), RunClosed("c1", 3, "ok")):
        records.append(record)
    wait_for(lambda: bool(uploader.trouble), 30)
    assert stored_cells(store, "a while") == []
    read_only(server, "off")
    wait_for(lambda: uploader.up_to_date, 60)
    assert uploader.finish(60)
    assert uploader.refused == []
    assert stored_cells(store, "a while") == [STORED]
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


POISONED = """CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN
    IF NEW.key = 'poison' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW;
    END $$ LANGUAGE plpgsql"""


def test_record_that_is_never_written_is_set_aside_and_sent_again_by_replay(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trigger = "CREATE TRIGGER refuse BEFORE INSERT ON metrics FOR EACH ROW EXECUTE FUNCTION"
    execute(server.backend, POISONED, f"{trigger} refuse()")
    store, (opened, *rest) = Store(server.uri), cell("poisoned")
    assert isinstance(opened, RunOpened)
    records, uploader = uploading(store, tmp_path / "journal", opened)
    metrics = [Metrics("r0", (Point(key, 1, 0, 1),)) for key in ("a", "poison")]
    for record in (*metrics, *rest):
        records.append(record)
    uploader.start()
    assert uploader.finish(120)
    (line,) = uploader.refused
    assert line.startswith("Metrics of r0: ")
    assert "not this one" in line
    assert stored_cells(store, "poisoned") == [(STORED[0], {"a": 1.0, **STORED[1]}, "m")]
    assert PROBE not in next(iter(store.runs("poisoned"))).tags

    execute(server.backend, "DROP TRIGGER refuse ON metrics")
    code = command_line.main(["replay", f"--journal={records.folder}"])
    assert code == 0, capsys.readouterr().out
    arrived = {"a": 1.0, "poison": 1.0, **STORED[1]}
    assert stored_cells(store, "poisoned") == [(STORED[0], arrived, "m")]


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
