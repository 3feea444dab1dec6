"""Program of compose's container, with PostgreSQL and artifacts in an S3-compatible store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests

from deploy import readiness
from tests.conftest import ROOT, wait_for
from tests.deploy.group import free_port
from tests.deploy.test_readiness import prepared
from tests.tracking.postgres import Postgres

PASSWORD = "drawn for this test alone"
# serve.py gives up root's rights for those of a user that only its container has.
START = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from deploy.compose import serve
serve.drop_root = lambda: None
serve.main()
"""


def answers(address: str) -> bool:
    try:
        return requests.get(address, timeout=5).status_code < 500
    except requests.RequestException:
        return False


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(partial(answers, address), 60)
    yield address
    process.kill()
    process.wait()


@pytest.fixture
def store(moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the client of an empty store, whose address and secrets the environment has."""
    requests.post(f"{moto}/moto-api/reset", timeout=30).raise_for_status()
    for name in ("database_password", "admin_password", "session_key"):
        (tmp_path / name).write_text(PASSWORD + "\n")
    values = {
        "SECRETS": str(tmp_path),
        "MLFLOW_S3_ENDPOINT_URL": moto,
        "AWS_ACCESS_KEY_ID": "evenhand",
        "AWS_SECRET_ACCESS_KEY": PASSWORD,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, text in values.items():
        monkeypatch.setenv(name, text)
    return boto3.client("s3", endpoint_url=moto)


def test_server_stores_artifacts_in_the_bucket(
    postgres: Postgres, tmp_path: Path, store: Any
) -> None:
    port = free_port()
    store.create_bucket(Bucket="evenhand")
    local = {"TMPDIR": str(tmp_path), "MLFLOW_PORT": str(port), "MLFLOW_WORKERS": "1"}
    local["MLFLOW_BACKEND_STORE_URI"] = postgres.database("compose")
    local["MLFLOW_ARTIFACTS_DESTINATION"] = "s3://evenhand/artifacts"
    options = {"env": {**os.environ, **local}, "cwd": tmp_path, "start_new_session": True}
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-c", START]
        process = subprocess.Popen(command, stdout=log, stderr=log, **options)
    uri, user = f"http://127.0.0.1:{port}", ("admin", PASSWORD)
    sent = bytes(range(256)) * 1_000
    try:
        wait_for(partial(answers, f"{uri}/health"), 90)
        create = f"{uri}/api/2.0/mlflow/experiments/create"
        experiment = requests.post(create, json={"name": "stored"}, auth=user, timeout=30).json()
        path = f"{experiment['experiment_id']}/{'0' * 32}/artifacts/values.bin"
        file = f"{uri}/api/2.0/mlflow-artifacts/artifacts/{path}"
        requests.put(file, data=sent, auth=user, timeout=30).raise_for_status()
        assert requests.get(file, auth=user, timeout=30).content == sent
        assert requests.get(file, timeout=30).status_code == 401
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    (stored,) = store.list_objects_v2(Bucket="evenhand")["Contents"]
    assert stored["Key"].endswith(path)
    assert store.get_object(Bucket="evenhand", Key=stored["Key"])["Body"].read() == sent
    assert PASSWORD not in (tmp_path / "log").read_text()


def objects(store: Any) -> dict[str, bytes]:
    contents = store.list_objects_v2(Bucket="evenhand").get("Contents", [])
    keys = [item["Key"] for item in contents]
    return {key: store.get_object(Bucket="evenhand", Key=key)["Body"].read() for key in keys}


def test_readiness_of_a_bucket(
    postgres: Postgres, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = prepared(postgres.database("asked"))
    missing = readiness.problem(database, "s3://evenhand/artifacts")
    assert missing.startswith("the artifacts ")
    assert "NoSuchBucket" in missing
    store.create_bucket(Bucket="evenhand")
    assert readiness.problem(database, "s3://evenhand/artifacts") == ""
    assert objects(store) == {}
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    output = readiness.problem(database, "s3://evenhand/artifacts")
    assert output.startswith("the artifacts ")
    assert PASSWORD not in output
