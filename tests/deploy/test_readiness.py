"""Container's program, and readiness: database and artifacts are written and read."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest
import requests
from sqlalchemy import create_engine, text

from deploy import readiness
from tests.conftest import ROOT, wait_for
from tests.deploy.group import FILES, answers, free_port
from tests.tracking.postgres import Postgres

LONGEST_SECONDS = 2 * readiness.WHOLE_SECONDS + 1
PASSWORD = "drawn for this test alone"
# serve.py gives up root's rights for those of a user that only its container has.
START = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from deploy.compose import serve
serve.drop_root = lambda: None
serve.main()
"""


def prepared(uri: str) -> str:
    """Return a database with the table that a server makes before it starts."""
    with create_engine(uri).begin() as connection:
        connection.execute(text(readiness.CREATE))
    return uri


@pytest.fixture
def database(postgres: Postgres, request: pytest.FixtureRequest) -> str:
    return prepared(postgres.database(f"ready_{abs(hash(request.node.name))}"))


def test_ready_server_leaves_one_row(database: str, tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    for uri in (database, prepared(f"sqlite:///{tmp_path}/one.db")):
        assert [readiness.problem(uri, str(artifacts)) for _ in range(3)] == [""] * 3
        with create_engine(uri).connect() as connection:
            assert connection.execute(text(f"SELECT count(*) FROM {readiness.TABLE}")).scalar() == 1
    assert not list(artifacts.iterdir())


def test_unusable_database_is_reported(database: str, tmp_path: Path) -> None:
    name = database.rpartition("/")[2]
    engine = create_engine(database, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
    assert "read-only" in readiness.problem(database, str(tmp_path))
    of_user = "evenhand:drawn%20for this test"
    closed = f"postgresql+psycopg2://{of_user}@127.0.0.1:{free_port()}/x"
    for uri in (database, closed, f"nonsense://{of_user}@x/y"):
        output = readiness.problem(uri, str(tmp_path))
        assert output.startswith("the database ")
        assert "drawn" not in output
        assert "\n" not in output


def test_hanging_database_is_reported_in_time(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    option, everyone = f"-p {postgres.port} -k", psutil.process_iter(["cmdline"])
    main = next(item for item in everyone if option in " ".join(item.info["cmdline"] or []))
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
    missing = str(tmp_path / "missing")
    assert missing in readiness.problem(uri, missing)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the client of an empty S3 store, whose address and keys the environment has."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    for name, value in {
        "MLFLOW_S3_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "evenhand",
        "AWS_SECRET_ACCESS_KEY": PASSWORD,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_for(partial(answers, address), 60)
        yield boto3.client("s3", endpoint_url=address)
        process.kill()


def test_container_stores_artifacts_in_a_bucket(
    postgres: Postgres, tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, bucket, port = postgres.database("compose"), "s3://evenhand/artifacts", free_port()
    assert "NoSuchBucket" in readiness.problem(prepared(database), bucket)
    store.create_bucket(Bucket="evenhand")
    assert readiness.problem(database, bucket) == ""
    assert "Contents" not in store.list_objects_v2(Bucket="evenhand")
    for name in ("database_password", "admin_password", "session_key"):
        (tmp_path / name).write_text(PASSWORD + "\n")
    local = {"SECRETS": str(tmp_path), "TMPDIR": str(tmp_path), "MLFLOW_PORT": str(port)}
    local |= {"MLFLOW_BACKEND_STORE_URI": database, "MLFLOW_ARTIFACTS_DESTINATION": bucket}
    env = {**os.environ, **local, "MLFLOW_WORKERS": "1"}
    with (tmp_path / "log").open("w") as log:
        command, options = [sys.executable, "-c", START], {"cwd": tmp_path, "env": env}
        process = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, **options
        )
    uri, sent = f"http://127.0.0.1:{port}", bytes(range(256)) * 1_000
    try:
        wait_for(partial(answers, f"{uri}/health"), 90)
        with requests.Session() as session:
            session.auth = ("admin", PASSWORD)
            create = f"{uri}/api/2.0/mlflow/experiments/create"
            experiment = session.post(create, json={"name": "stored"}).json()["experiment_id"]
            path = f"{experiment}/{'0' * 32}/artifacts/values.bin"
            session.put(f"{uri}{FILES}/{path}", data=sent).raise_for_status()
            assert session.get(f"{uri}{FILES}/{path}").content == sent
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    (stored,) = store.list_objects_v2(Bucket="evenhand")["Contents"]
    assert stored["Key"].endswith(path)
    assert store.get_object(Bucket="evenhand", Key=stored["Key"])["Body"].read() == sent
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    output = readiness.problem(database, bucket)
    assert output.startswith("the artifacts ")
    assert PASSWORD not in (tmp_path / "log").read_text() + output
