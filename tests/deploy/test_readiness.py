"""Readiness: database and artifacts are written and read; a failure is one line."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine, text

from deploy import readiness
from tests.deploy.group import free_port
from tests.tracking.postgres import Postgres

LONGEST_SECONDS = 2 * readiness.WHOLE_SECONDS + 1


def prepared(uri: str) -> str:
    """Return a database with the table that a server makes before it starts."""
    with create_engine(uri).begin() as connection:
        connection.execute(text(readiness.CREATE))
    return uri


@pytest.fixture
def database(postgres: Postgres, request: pytest.FixtureRequest) -> str:
    return prepared(postgres.database(f"ready_{abs(hash(request.node.name))}"))


def test_what_works_is_said_by_nothing_and_leaves_one_row(database: str, tmp_path: Path) -> None:
    for uri in (database, prepared(f"sqlite:///{tmp_path}/one.db")):
        artifacts = tmp_path / "artifacts"
        artifacts.mkdir(exist_ok=True)
        assert [readiness.problem(uri, str(artifacts)) for _ in range(3)] == [""] * 3
        with create_engine(uri).connect() as connection:
            assert connection.execute(text(f"SELECT count(*) FROM {readiness.TABLE}")).scalar() == 1
        assert not list(artifacts.iterdir())


def test_a_database_that_is_read_only_dead_or_unknown_is_told(
    database: str, tmp_path: Path
) -> None:
    assert readiness.problem(database, str(tmp_path)) == ""
    name = database.rpartition("/")[2]
    with (
        create_engine(database)
        .connect()
        .execution_options(isolation_level="AUTOCOMMIT") as connection
    ):
        connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
    assert (
        "the database cannot be written and read: cannot execute INSERT in a read-only"
        in readiness.problem(database, str(tmp_path))
    )
    password = "drawn%20for this test"
    for uri in (
        f"postgresql+psycopg2://evenhand:{password}@127.0.0.1:{free_port()}/x",
        f"nonsense://evenhand:{password}@x/y",
    ):
        output = readiness.problem(uri, str(tmp_path))
        assert output.startswith("the database cannot be written and read: ")
        assert "drawn" not in output
        assert "\n" not in output


def test_a_database_that_hangs_is_not_waited_for(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    everyone = psutil.process_iter(["cmdline"])
    main = next(
        item
        for item in everyone
        if f"-p {postgres.port} -k" in " ".join(item.info["cmdline"] or [])
    )
    os.kill(main.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert "the database cannot be written and read" in readiness.problem(
            database, str(tmp_path)
        )
        assert time.monotonic() - began < LONGEST_SECONDS
    finally:
        os.kill(main.pid, signal.SIGCONT)


@pytest.mark.parametrize("small_disk", ["64k"], indirect=True)
def test_a_full_disk_and_a_missing_folder_are_told(small_disk: Path, tmp_path: Path) -> None:
    uri = prepared(f"sqlite:///{tmp_path}/one.db")
    assert readiness.problem(uri, str(small_disk)) == ""
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "ballast").write_bytes(bytes(100_000))
    assert readiness.problem(uri, str(small_disk)) == (
        f"the artifacts cannot be written and read: {small_disk}: No space left on device"
    )
    assert [item.name for item in small_disk.iterdir()] == ["ballast"]
    (small_disk / "ballast").unlink()
    assert "No such file or directory" in readiness.problem(uri, str(tmp_path / "missing"))
