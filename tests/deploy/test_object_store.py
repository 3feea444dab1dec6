"""What compose starts, without its containers: artifacts in an S3-compatible store, the database in PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import boto3
import requests

from tests.conftest import ROOT, wait_for
from tests.deploy.group import free_port
from tests.tracking.postgres import Postgres

PASSWORD = "drawn for this test alone"


def answers(address: str) -> bool:
    try:
        return requests.get(address, timeout=5).status_code < 500
    except requests.RequestException:
        return False


def test_artifacts_go_through_the_server_into_the_store(postgres: Postgres, tmp_path: Path) -> None:
    store_port, port = free_port(), free_port()
    store, uri = f"http://127.0.0.1:{store_port}", f"http://127.0.0.1:{port}"
    for name in ("database_password", "store_password", "admin_password", "session_key"):
        (tmp_path / name).write_text(PASSWORD + "\n")
    own = {"SECRETS": str(tmp_path), "TMPDIR": str(tmp_path), "DATABASE": postgres.database("compose"), "STORE": store}
    own |= {"SERVER_NAME": "localhost", "HOST": "127.0.0.1", "PORT": str(port)}
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("MLFLOW_", "AWS_"))}
    started = []
    with (tmp_path / "log").open("w") as log:
        try:
            for address, command in {
                store: [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(store_port)],
                # serve.py gives up root's rights for those of a user that only its container has
                f"{uri}/health": [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {START}"],
            }.items():
                started.append(
                    subprocess.Popen(command, env={**kept, **own}, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
                )
                wait_for(partial(answers, address), 90)
            check(uri, store)
        finally:
            for process in started:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert PASSWORD not in (tmp_path / "log").read_text()


START = "from deploy.compose import serve; serve.drop_root = lambda: None; serve.main()"


def check(uri: str, store: str) -> None:
    user = ("admin", PASSWORD)
    made = requests.post(f"{uri}/api/2.0/mlflow/experiments/create", json={"name": "stored"}, auth=user, timeout=30).json()
    path = f"mlflow-artifacts/artifacts/{made['experiment_id']}/run/artifacts/values.bin"
    sent = bytes(range(256)) * 1_000
    assert requests.put(f"{uri}/api/2.0/{path}", data=sent, auth=user, timeout=30).status_code == 200
    assert requests.get(f"{uri}/api/2.0/{path}", auth=user, timeout=30).content == sent
    assert requests.get(f"{uri}/api/2.0/{path}", timeout=30).status_code == 401
    words = {"aws_access_key_id": "evenhand", "aws_secret_access_key": PASSWORD, "region_name": "us-east-1"}
    bucket = boto3.client("s3", endpoint_url=store, **words)
    (kept,) = bucket.list_objects_v2(Bucket="evenhand")["Contents"]
    assert kept["Key"].endswith(f"{made['experiment_id']}/run/artifacts/values.bin")
    assert bucket.get_object(Bucket="evenhand", Key=kept["Key"])["Body"].read() == sent
