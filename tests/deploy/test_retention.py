"""Deleted runs are collected, with their files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import warm
from tests.deploy.group import API, Group
from tests.tracking.postgres import Postgres
from tracking.records import Artifact, Metrics, Point, RunClosed, RunKind, RunOpened
from tracking.store import Store

PLACE = "vision/grid"


@pytest.fixture
def store(as_user: Callable[[str], Store]) -> Store:
    return as_user("admin")


def log_cell(store: Store, folder: Path, name: str) -> str:
    """Log a cell with a file and a metric. Return its run id."""
    ended_ms = int(time.time() * 1_000)
    (folder / "values.parquet").write_text("values")
    records = [
        RunOpened(name, ended_ms - 10, PLACE, name, {"kind": RunKind.CELL}),
        Metrics(name, (Point("val/loss", 1.5, 0, ended_ms),)),
        Artifact(name, "values.parquet"),
        RunClosed(name, ended_ms, "ok"),
    ]
    assert store.apply(records, folder) == []
    return str(store.run_id(name))


def test_deleted_run_is_collected(
    group: Group, store: Store, postgres: Postgres, tmp_path: Path
) -> None:
    run_id = log_cell(store, tmp_path, "mistake")
    deleted = group.ask("admin", "POST", f"{API}/runs/delete", json={"run_id": run_id})
    deleted.raise_for_status()
    stored = list(group.folder.glob(f"artifacts/*/{run_id}/artifacts/values.parquet"))
    assert stored
    command = [sys.executable, "-m", "mlflow", "gc", "--backend-store-uri", postgres.uri("teams")]
    command += ["--artifacts-destination", str(group.folder / "artifacts")]
    done = warm.run(command, group.environment("admin"), group.folder)
    assert done.returncode == 0, done.stderr
    assert not stored[0].exists()
    answer = group.ask("admin", "GET", f"{API}/runs/get", params={"run_id": run_id})
    assert answer.status_code == 404
