"""A database that takes no writes for a while is waited for; a record that it can never take holds nothing else up."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from experiments.cli import main as command_line
from tests.conftest import Place, Server, titled, toy_costs, wait_for
from tests.faults.test_campaign import records as recorded
from tests.tracking.postgres import Postgres
from tracking import journal, limits
from tracking.journal import Journal
from tracking.records import DatasetUsed, Metrics, Point, Record, RunClosed, RunOpened, Tags
from tracking.store import Store
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
    """The whole database server, as a standby would be."""
    execute(
        server.backend,
        f"ALTER SYSTEM SET default_transaction_read_only = {how}",
        "SELECT pg_reload_conf()",
    )
    time.sleep(0.5)


@pytest.fixture(scope="module")
def shared(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all: each test has an experiment of its own."""
    started = Server(tmp_path_factory.mktemp("unwritten"), postgres.database("unwritten"))
    yield started
    started.kill()


@pytest.fixture
def server(shared: Server) -> Iterator[Server]:
    yield shared
    read_only(shared, "off")


def cells(place: str, numbers: range) -> list[Record]:
    made: list[Record] = []
    for number in numbers:
        points = tuple(Point("train/loss", 1 / step, step, step) for step in range(1, POINTS + 1))
        made += [
            RunOpened(
                f"r{number}", 1, place, f"cell {number}", {"kind": "cell"}, {"batch_size": "32"}
            ),
            Metrics(f"r{number}", points),
            Tags(f"r{number}", {"machine": "m"}),
            DatasetUsed(f"r{number}", "digits", "abc", "here", "{}", "{}", "training"),
            RunClosed(f"r{number}", 2, "ok"),
        ]
    return made


def everything(store: Store, place: str) -> dict[str, tuple[str, int, str | None]]:
    """Status, points and a tag of every cell."""
    found = [run for run in store.runs(place) if run.name.startswith("cell")]
    return {
        run.name: (
            run.status,
            len(store.points(run.run_id, "train/loss")),
            run.tags.get("machine"),
        )
        for run in found
    }


def test_a_database_that_is_read_only_for_a_while_is_waited_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracking.upload.LONGEST_PAUSE_SECONDS", 1.0)
    store, kept = Store(server.uri), Journal(tmp_path / "journal")
    campaign = RunOpened("c1", 1, "a while", "campaign", {"kind": "campaign"})
    assert store.apply([campaign], tmp_path) == []
    uploader = Uploader(kept, store, store.run_id("c1") or "")
    uploader.start()
    for record in cells("a while", range(2)):
        kept.append(record)
    wait_for(lambda: uploader.up_to_date, 30)
    read_only(server, "on")
    for record in cells("a while", range(2, 5)):
        kept.append(record)
    wait_for(lambda: "read-only" in uploader.trouble, 30)
    time.sleep(1)
    assert uploader.refused == []
    assert len(everything(store, "a while")) == 2
    read_only(server, "off")
    for record in (*cells("a while", range(5, 6)), RunClosed("c1", 3, "ok")):
        kept.append(record)
    wait_for(lambda: uploader.up_to_date, 60)
    assert uploader.finish(60)
    assert uploader.refused == []
    assert everything(store, "a while") == {
        f"cell {number}": ("FINISHED", POINTS, "m") for number in range(6)
    }
    assert {run.status for run in store.runs("a while")} == {"FINISHED"}


def test_what_a_server_refuses_for_what_it_says_is_known_before(
    server: Server, tmp_path: Path
) -> None:
    """Keys, lengths, ranges: none of it comes back from PostgreSQL as an error, and what is good of a record arrives."""
    odd = "a\0b\ud800c"
    told: list[Record] = [
        RunOpened(
            "r0",
            1,
            "odd",
            "n" * 300 + odd,
            {"kind": "cell", odd: "x", "odd": odd},
            {"k" * 251: "x", "p": odd},
        ),
        Tags("r0", {"t" * 250: "v" * 9_000, "/t": "x", "ok": "yes"}),
        Metrics(
            "r0",
            (
                Point("m", 1.0, 2**63, 1),
                Point("m", 1.0, 0, -1),
                Point("..", 1.0, 0, 1),
                Point("m", 5.0, -3, 1),
            ),
        ),
        DatasetUsed("r0", "n", "d" * 37, "s", "{}", "{}", "training"),
        RunOpened("r1", 1, "e" * 257, "run"),
        RunClosed("r0", 2, "failed", odd),
    ]
    store = Store(server.uri)
    refused = store.apply(told, tmp_path)
    assert len(refused) == 8, refused
    (run,) = store.runs("odd")
    assert run.status == "FAILED"
    assert (run.name, run.tags["odd"], run.params) == (
        "n" * 250,
        "a\ufffdb\ufffdc",
        {"p": "a\ufffdb\ufffdc"},
    )
    assert run.tags["ok"] == "yes"
    assert len(run.tags["t" * 250]) == 8_000
    assert run.metrics == {"m": 5.0}


def test_campaign_on_a_read_only_database_names_the_command_that_completes_it(
    place: Place, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Place(place.folder, place.cache, server.uri)
    for name, text in toy_costs(step=0.2).items():
        monkeypatch.setenv(name, text)
    parent = remote.start(
        frameworks="toy", data="synthetic", vocabulary="60", length="8", epochs="6", blocks="1"
    )
    wait_for(lambda: any(isinstance(record, Metrics) for record in recorded(remote)), 240)
    read_only(server, "on")
    output, _ = parent.communicate(timeout=280)
    assert parent.returncode == 3, output
    assert "Traceback" not in output
    advice = re.search(
        r"! (\d+) records wait: .*read-only.*; send them when it can: "
        r"(\S*python\S* -m experiments replay .*)",
        output,
    )
    assert advice, output
    assert "refused" not in output
    assert "RUNNING" in {run.status for run in Store(server.uri).runs("captioning")}
    command = [sys.executable, *shlex.split(advice[2])[1:]]

    refused = remote.call(*command)
    assert refused.returncode == 1
    assert re.search(rf"! \d+ records wait: .*{re.escape(advice[2])}", refused.stdout), (
        refused.stdout
    )
    read_only(server, "off")
    done: subprocess.CompletedProcess[str] = remote.call(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = {titled(run): run for run in Store(server.uri).runs("captioning")}
    assert {run.status for run in runs.values()} == {"FINISHED"}
    (folder,) = journal.campaigns(remote.journal)
    points = [
        point
        for record in journal.read_all(folder)
        if isinstance(record, Metrics)
        for point in record.points
    ]
    losses = [point for point in points if point.key == "train/loss"]
    assert (
        len(Store(server.uri).points(runs["toy · block 1"].run_id, "train/loss"))
        == len(losses)
        == 6
    )


POISONED = """CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN
    IF NEW.key = 'poison' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW;
    END $$ LANGUAGE plpgsql"""


def test_record_that_is_never_written_is_set_aside_and_sent_again_by_replay(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(
        server.backend,
        POISONED,
        "CREATE TRIGGER refuse BEFORE INSERT ON metrics FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    folder = tmp_path / "journal"
    store, stored = Store(server.uri), Journal(folder)
    opened, *rest = cells("poisoned", range(1))
    for record in (
        opened,
        Metrics("r0", (Point("a", 1, 0, 1),)),
        Metrics("r0", (Point("poison", 1, 0, 1),)),
        *rest,
    ):
        stored.append(record)
    store.apply([opened], folder)
    uploader = Uploader(stored, store, store.run_id("r0") or "")
    uploader.start()
    assert uploader.finish(120)
    (line,) = uploader.refused
    assert re.match(
        "Metrics of r0: set aside, the server fails on it and writes others: .*not this one", line
    )
    assert everything(store, "poisoned") == {"cell 0": ("FINISHED", POINTS, "m")}
    assert "evenhand.probe" not in next(iter(store.runs("poisoned"))).tags

    execute(server.backend, "DROP TRIGGER refuse ON metrics")
    assert command_line.main(["replay", f"--journal={folder}"]) == 0, capsys.readouterr().out
    assert dict(next(iter(store.runs("poisoned"))).metrics) == {
        "a": 1.0,
        "poison": 1.0,
        "train/loss": 1 / POINTS,
    }


def test_the_bounds_are_those_of_the_server() -> None:
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
