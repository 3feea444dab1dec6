"""Programs of compose's containers: artifacts in an S3-compatible store, PostgreSQL, backups."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import psycopg2
import pytest
import requests

from deploy import readiness
from tests.conftest import ROOT, wait_for
from tests.deploy.group import free_port
from tests.deploy.test_readiness import prepared
from tests.tracking.postgres import Postgres

PASSWORD = "drawn for this test alone"
WORDS = {
    "aws_access_key_id": "evenhand",
    "aws_secret_access_key": PASSWORD,
    "region_name": "us-east-1",
}


def answers(address: str) -> bool:
    try:
        return requests.get(address, timeout=5).status_code < 500
    except requests.RequestException:
        return False


def test_artifacts_go_through_the_server_into_the_store(postgres: Postgres, tmp_path: Path) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    for name in ("database_password", "store_password", "admin_password", "session_key"):
        (tmp_path / name).write_text(PASSWORD + "\n")
    local = {
        "SECRETS": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "DATABASE": postgres.database("compose"),
    }
    local |= {"SERVER_NAME": "localhost", "HOST": "127.0.0.1", "PORT": str(port)}
    stored = {
        name: text for name, text in os.environ.items() if not name.startswith(("MLFLOW_", "AWS_"))
    }
    # serve.py gives up root's rights for those of a user that only its container has
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {START}"]
    with running_store() as store, (tmp_path / "log").open("w") as log:
        environment = {**stored, **local, "STORE": store}
        options = {"stdout": log, "stderr": log, "start_new_session": True}
        options |= {"env": environment, "cwd": tmp_path}
        process = subprocess.Popen(command, **options)  # type: ignore[call-overload]
        try:
            wait_for(partial(answers, f"{uri}/health"), 90)
            check(uri, store)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert PASSWORD not in (tmp_path / "log").read_text()


START = "from deploy.compose import serve; serve.drop_root = lambda: None; serve.main()"


def check(uri: str, store: str) -> None:
    user = ("admin", PASSWORD)
    made = requests.post(
        f"{uri}/api/2.0/mlflow/experiments/create", json={"name": "stored"}, auth=user, timeout=30
    ).json()
    path = f"mlflow-artifacts/artifacts/{made['experiment_id']}/run/artifacts/values.bin"
    sent = bytes(range(256)) * 1_000
    assert (
        requests.put(f"{uri}/api/2.0/{path}", data=sent, auth=user, timeout=30).status_code == 200
    )
    assert requests.get(f"{uri}/api/2.0/{path}", auth=user, timeout=30).content == sent
    assert requests.get(f"{uri}/api/2.0/{path}", timeout=30).status_code == 401
    bucket = boto3.client("s3", endpoint_url=store, **WORDS)
    (stored,) = bucket.list_objects_v2(Bucket="evenhand")["Contents"]
    assert stored["Key"].endswith(f"{made['experiment_id']}/run/artifacts/values.bin")
    assert bucket.get_object(Bucket="evenhand", Key=stored["Key"])["Body"].read() == sent


@contextmanager
def running_store() -> Iterator[str]:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(partial(answers, address), 60)
        yield address
    finally:
        process.kill()
        process.wait()


def backup(
    place: Path, database: str, store: str, *words: str, keep: int = 2
) -> subprocess.CompletedProcess[str]:
    local = {
        "SECRETS": str(place),
        "BACKUPS": str(place / "backups"),
        "DATABASE": database,
        "STORE": store,
        "KEEP": str(keep),
    }
    command = [sys.executable, "-m", "deploy.compose.backup", *words]
    return subprocess.run(
        command, env={**os.environ, **local}, cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def ask(database: str, question: str) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(database.replace("+psycopg2", ""))
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(question)
        return cursor.fetchall() if cursor.description else []


def test_database_and_bucket_are_copied_and_restored(postgres: Postgres, tmp_path: Path) -> None:
    for name in ("database_password", "store_password"):
        (tmp_path / name).write_text(PASSWORD + "\n")
    first, second = postgres.database("copied"), postgres.database("anew")
    ask(first, "CREATE TABLE stored (value integer); INSERT INTO stored VALUES (7)")
    sent = {f"artifacts/{number}/values {number}.bin": os.urandom(10_000) for number in range(3)}
    backups = tmp_path / "backups"
    for year in (2019, 2020):
        (backups / f"{year}-01-01T00-00-00").mkdir(parents=True)
        (backups / f"{year}-01-01T00-00-00" / "about.json").write_text('{"sha256": {}}')
    with running_store() as store:
        bucket = boto3.client("s3", endpoint_url=store, **WORDS)
        bucket.create_bucket(Bucket="evenhand")
        for key, content in {**sent, f"artifacts/{readiness.PROBE}-host-1": b"x"}.items():
            bucket.put_object(Bucket="evenhand", Key=key, Body=content)
        made = backup(tmp_path, first, store, "make")
        assert made.returncode == 0, made.stderr
        assert "3 files" in made.stdout
        name = max(path.name for path in backups.iterdir())
        assert {path.name for path in backups.iterdir()} == {"2020-01-01T00-00-00", name}
        full = backup(tmp_path, second, store, "restore", name)
        assert (full.returncode, len(full.stderr.splitlines())) == (2, 1), full.stderr

    failed = backup(tmp_path, first, f"http://127.0.0.1:{free_port()}", "make")
    assert failed.returncode == 2
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert PASSWORD not in failed.stderr
    assert not list(backups.glob(".*"))

    with running_store() as store:
        unknown = backup(tmp_path, second, store, "restore", "../backups")
        assert (unknown.returncode, len(unknown.stderr.splitlines())) == (2, 1), unknown.stderr
        restored = backup(tmp_path, second, store, "restore", name)
        assert restored.returncode == 0, restored.stderr
        bucket = boto3.client("s3", endpoint_url=store, **WORDS)
        contents = bucket.list_objects_v2(Bucket="evenhand")["Contents"]
        assert {item["Key"] for item in contents} == set(sent)
        for key, content in sent.items():
            assert bucket.get_object(Bucket="evenhand", Key=key)["Body"].read() == content
    assert ask(second, "SELECT value FROM stored") == [(7,)]


@pytest.mark.parametrize("small_disk", ["1m"], indirect=True)
def test_a_store_is_written_and_read_to_be_ready_and_a_full_disk_holds_no_half_copy(
    postgres: Postgres, tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = prepared(postgres.database("asked"))
    for name, text in {
        "AWS_ACCESS_KEY_ID": "evenhand",
        "AWS_SECRET_ACCESS_KEY": PASSWORD,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, text)
    with running_store() as store:
        monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", store)
        output = readiness.problem(database, "s3://evenhand/artifacts")
        assert output.startswith("the artifacts cannot be written and read: ")
        assert "NoSuchBucket" in output
        bucket = boto3.client("s3", endpoint_url=store, **WORDS)
        bucket.create_bucket(Bucket="evenhand")
        assert readiness.problem(database, "s3://evenhand/artifacts") == ""
        assert "Contents" not in bucket.list_objects_v2(Bucket="evenhand")

        bucket.put_object(Bucket="evenhand", Key="artifacts/large", Body=os.urandom(2_000_000))
        for name in ("database_password", "store_password"):
            (tmp_path / name).write_text(PASSWORD + "\n")
        (tmp_path / "backups").symlink_to(small_disk)
        failed = backup(tmp_path, database, store, "make")
        assert failed.returncode == 2
        assert "No space left on device" in failed.stderr
        assert len(failed.stderr.splitlines()) == 1
        assert list(small_disk.iterdir()) == []
    output = readiness.problem(database, "s3://evenhand/artifacts")
    assert output.startswith("the artifacts cannot be written and read: Could not connect")
    assert PASSWORD not in output
