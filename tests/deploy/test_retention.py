"""Retention: raw files of old cells with a report are pruned; deleted runs are collected."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.group import Group, native
from tracking.records import Artifact, Metrics, Point, RunClosed, RunKind, RunOpened
from tracking.store import Store

DAY_MS = 86_400_000
PLACE = "vision/grid"


@pytest.fixture
def store(as_user: Callable[[str], Store]) -> Store:
    return as_user("admin")


def tell(store: Store, folder: Path, name: str, days_ago: int, *, report: bool) -> None:
    """A campaign with one cell that has a file and a metric."""
    ended_ms = int(time.time() * 1_000) - days_ago * DAY_MS
    for file in ("report.html", "values.parquet"):
        (folder / file).write_text(file)
    cell = f"cell of {name}"
    records = [
        RunOpened(name, ended_ms - 10, PLACE, name, {"kind": RunKind.CAMPAIGN}),
        RunOpened(
            cell, ended_ms - 9, PLACE, cell, {"kind": RunKind.CELL, "campaign": f"run:{name}"}
        ),
        Metrics(cell, (Point("val/loss", 1.5, 0, ended_ms),)),
        Artifact(cell, "values.parquet"),
        RunClosed(cell, ended_ms, "ok"),
        *([Artifact(name, "report.html")] if report else []),
        RunClosed(name, ended_ms, "ok"),
    ]
    assert store.apply(records, folder) == []


def files(store: Store, name: str) -> bool:
    run_id = store.run_id(name)
    assert run_id
    return store.has_file(run_id, "values.parquet") or store.has_file(run_id, "report.html")


def test_files_of_old_cells_with_a_report_go_and_nothing_else(
    group: Group, store: Store, tmp_path: Path
) -> None:
    for name, days_ago, report in (
        ("old", 100, True),
        ("unreported", 100, False),
        ("new", 2, True),
    ):
        tell(store, tmp_path, name, days_ago, report=report)
    listed = group.admin(action="prune", experiment=PLACE, days="30")
    assert listed.returncode == 0, listed.stderr
    assert "cell of old" in listed.stdout
    assert "cell of new" not in listed.stdout
    assert "cell of unreported" not in listed.stdout
    assert files(store, "cell of old"), "listing deletes nothing"

    done = group.admin(action="prune", experiment=PLACE, days="30", confirm="true")
    assert done.returncode == 0, done.stderr
    assert not files(store, "cell of old")
    for name in ("old", "cell of unreported", "new", "cell of new"):
        assert files(store, name)
    run_id = store.run_id("cell of old")
    stored = store.run(run_id) if run_id else None
    assert stored is not None
    assert stored.metrics == {"val/loss": 1.5}
    assert "pruned_files" in stored.tags
    again = group.admin(action="prune", experiment=PLACE, days="30")
    assert "no run that ended 30 days ago or more" in again.stdout


def test_what_was_deleted_is_collected(group: Group, store: Store, tmp_path: Path) -> None:
    tell(store, tmp_path, "mistake", 1, report=False)
    run_id = store.run_id("cell of mistake")
    group.ask(
        "admin", "POST", "/api/2.0/mlflow/runs/delete", json={"run_id": run_id}
    ).raise_for_status()
    stored = list(group.folder.glob(f"artifacts/*/{run_id}/artifacts/values.parquet"))
    assert stored
    done = native("gc", group.folder)
    assert done.returncode == 0, done.stderr
    assert not stored[0].exists()
    assert (
        group.ask("admin", "GET", "/api/2.0/mlflow/runs/get", params={"run_id": run_id}).status_code
        == 404
    )
