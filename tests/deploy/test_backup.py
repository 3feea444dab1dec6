"""Backup of a running server: `pg_dump`, then a copy of the artifacts, restored into a new one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests import debian
from tests.deploy.group import API, Group, Team, mlflow_server
from tests.tracking.postgres import Postgres


def test_dump_and_copy_are_a_server_again(
    group: Group, hers: Team, postgres: Postgres, tmp_path: Path
) -> None:
    point = {"key": "val/loss", "value": 1.5, "timestamp": 1, "step": 0}
    hers.post("runs/log-metric", run_id=hers.run, **point)
    uris = postgres.uri("teams"), postgres.database("again")
    first, second = (uri.replace("+psycopg2", "") for uri in uris)
    for program, *words in (
        ("pg_dump", "--format=custom", f"--file={tmp_path}/evenhand.dump", first),
        ("pg_restore", "--no-owner", f"--dbname={second}", f"{tmp_path}/evenhand.dump"),
    ):
        subprocess.run([debian.POSTGRESQL[-1] / program, *words], check=True)
    shutil.copytree(group.folder / "artifacts", tmp_path / "artifacts")
    with mlflow_server(tmp_path, "--workers", "1", "--backend-store-uri", uris[1]) as restored:
        (restored.accounts / "alice.env").write_text((group.accounts / "alice.env").read_text())
        query = {"run_id": hers.run}
        run = restored.ask("alice", "GET", f"{API}/runs/get", params=query).json()["run"]
        assert [metric["value"] for metric in run["data"]["metrics"]] == [1.5]
        assert restored.ask("alice", "GET", hers.file).content == b"kept"
        refused = {"name": "speech/mine"}
        answer = restored.ask("alice", "POST", f"{API}/experiments/create", json=refused)
        assert answer.status_code == 403
