"""Runs of journals and of a server, read from files and tables without the project's own code."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2

LARGEST = 1.7976931348623157e308  # MLflow's value of infinity
SHARED = "mlflow.evenhand"  # prefix of the tags that hold several of ours
# Tags whose value changes during a run, or differs between servers.
OF_THE_MOMENT = {"heartbeat", "host", "pid", "pid_started", "campaign", "mlflow.parentRunId"}
STATUSES = {"ok": "FINISHED", "interrupted": "KILLED", "pruned": "KILLED"}


@dataclass
class Run:
    """Run of either side.

    Attributes:
        points: (key, step, time in ms, value as text).
        files: Path -> SHA-256.
    """

    origin: str
    name: str = ""
    status: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    points: set[tuple[str, int, int, str]] = field(default_factory=set)
    files: dict[str, str] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)

    @property
    def is_finished_cell(self) -> bool:
        return self.tags.get("kind") == "cell" and self.status == "FINISHED"


def in_journal(folder: Path) -> dict[str, Run]:
    """Return every run of a campaign's journal by its origin."""
    runs: dict[str, Run] = {}
    for line in (folder / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        run = runs.setdefault(record["run"], Run(record["run"]))
        match record["record"]:
            case "RunOpened":
                run.name = record["name"]
                run.tags |= record["tags"]
                run.params |= record["params"]
            case "Tags":
                run.tags |= record["values"]
            case "Metrics" if record["detail"]:
                run.tags |= {f"metric.{p['key']}": repr(p["value"]) for p in record["points"]}
            case "Metrics":
                points = record["points"]
                run.points |= {
                    (p["key"], p["step"], p["time_ms"], _text(p["value"])) for p in points
                }
            case "Artifact":
                run.files |= dict(_files(folder / record["path"], record["folder"]))
            case "ModelSaved":
                run.models.append(record["name"])
            case "RunClosed":
                run.tags["outcome"] = record["outcome"]
                if record["reason"]:
                    run.tags["outcome_reason"] = record["reason"]
                run.status = STATUSES.get(record["outcome"], "FAILED")
    for run in runs.values():
        run.tags = {key: text for key, text in run.tags.items() if key not in OF_THE_MOMENT}
        run.models.sort()
    return runs


def on_server(database: str, artifacts: Path) -> list[Run]:
    """Return every run of MLflow's tables that is not deleted, with its files."""
    address = database.replace("postgresql+psycopg2://", "postgresql://")
    with psycopg2.connect(address) as connection, connection.cursor() as cursor:

        def select(query: str) -> list[tuple[Any, ...]]:
            cursor.execute(query)
            return list(cursor.fetchall())

        active = "WHERE lifecycle_stage = 'active'"
        rows = select(f"SELECT run_uuid, name, status, artifact_uri FROM runs {active}")
        runs = defaultdict(lambda: Run(""), {key: Run("", *more) for key, *more, _ in rows})
        for kind in ("tags", "params"):
            for run_id, key, text in select(f"SELECT run_uuid, key, value FROM {kind}"):
                getattr(runs[run_id], kind)[key] = text
        metrics = "SELECT run_uuid, key, step, timestamp, value, is_nan FROM metrics"
        for run_id, key, step, time_ms, value, is_nan in select(metrics):
            runs[run_id].points.add((key, step, time_ms, "nan" if is_nan else _text(value)))
        for run_id, name in select(f"SELECT source_run_id, name FROM logged_models {active}"):
            runs[run_id].models.append(name)
    for run_id, *_, uri in rows:
        run = runs[run_id]
        run.models.sort()
        run.origin = run.tags.pop(f"{SHARED}.origin", "") or run.tags.get("origin", "")
        for part in [name for name in run.tags if name.startswith(SHARED)]:
            run.tags |= json.loads(run.tags.pop(part))
        folder = artifacts / uri.removeprefix("mlflow-artifacts:/")
        run.files = dict(_files(folder)) if folder.exists() else {}
    return [runs[run_id] for run_id, *_ in rows]


def _files(path: Path, folder: str = "") -> Iterator[tuple[str, str]]:
    """Yield each file with its SHA-256, a folder's named from inside of it, as MLflow does."""
    assert path.exists(), f"{path} is missing"
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.is_file():
            name = file.relative_to(path.parent if path.is_file() else path).as_posix()
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            yield f"{folder}/{name}" if folder else name, digest


def _text(value: float) -> str:
    return repr(math.copysign(LARGEST, value) if math.isinf(value) else float(value))
