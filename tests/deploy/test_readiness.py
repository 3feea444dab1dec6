"""Readiness: database and artifacts are written and read; a failure is one line."""

from __future__ import annotations

import errno
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


def test_ready_server_leaves_one_row(database: str, tmp_path: Path) -> None:
    for uri in (database, prepared(f"sqlite:///{tmp_path}/one.db")):
        artifacts = tmp_path / "artifacts"
        artifacts.mkdir(exist_ok=True)
        assert [readiness.problem(uri, str(artifacts)) for _ in range(3)] == [""] * 3
        with create_engine(uri).connect() as connection:
            assert connection.execute(text(f"SELECT count(*) FROM {readiness.TABLE}")).scalar() == 1
        assert not list(artifacts.iterdir())


def test_unusable_database_is_reported(database: str, tmp_path: Path) -> None:
    assert readiness.problem(database, str(tmp_path)) == ""
    name = database.rpartition("/")[2]
    with (
        create_engine(database)
        .connect()
        .execution_options(isolation_level="AUTOCOMMIT") as connection
    ):
        connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
    problem = readiness.problem(database, str(tmp_path))
    assert problem.startswith("the database ")
    assert "read-only" in problem
    password = "drawn%20for this test"
    for uri in (
        f"postgresql+psycopg2://evenhand:{password}@127.0.0.1:{free_port()}/x",
        f"nonsense://evenhand:{password}@x/y",
    ):
        output = readiness.problem(uri, str(tmp_path))
        assert output.startswith("the database ")
        assert "drawn" not in output
        assert "\n" not in output


def test_hanging_database_is_reported_in_time(
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
        assert readiness.problem(database, str(tmp_path)).startswith("the database ")
        assert time.monotonic() - began < LONGEST_SECONDS
    finally:
        os.kill(main.pid, signal.SIGCONT)


@pytest.mark.parametrize("small_disk", ["64k"], indirect=True)
def test_full_disk_and_missing_folder_are_reported(small_disk: Path, tmp_path: Path) -> None:
    uri = prepared(f"sqlite:///{tmp_path}/one.db")
    assert readiness.problem(uri, str(small_disk)) == ""
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "ballast").write_bytes(bytes(100_000))
    problem = readiness.problem(uri, str(small_disk))
    assert problem.startswith("the artifacts ")
    assert problem.endswith(f"{small_disk}: {os.strerror(errno.ENOSPC)}")
    assert [item.name for item in small_disk.iterdir()] == ["ballast"]
    (small_disk / "ballast").unlink()
    missing = tmp_path / "missing"
    assert str(missing) in readiness.problem(uri, str(missing))
