"""What journals hold and what a server has, read from their files and tables: none of the code that carries one to the other."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2

LARGEST = 1.7976931348623157e308  # what MLflow keeps of infinity
SHARED = "mlflow.evenhand"  # what many tags share
# Whose value changes while a run lives, or is another on every server.
OF_THE_MOMENT = {"heartbeat", "host", "pid", "pid_started", "campaign"}


@dataclass
class Run:
    """A run, as either side tells it. points: (key, step, time in ms, value as text); files: path → SHA-256."""

    origin: str
    name: str = ""
    status: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    points: set[tuple[str, int, int, str]] = field(default_factory=set)
    files: dict[str, str] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)

    def checksum(self, tags: set[str]) -> str:
        """Of everything but what only one side says."""
        told = [
            self.name,
            sorted((k, v) for k, v in self.tags.items() if k in tags),
            sorted(self.params.items()),
        ]
        told += [sorted(self.points), sorted(self.files.items()), sorted(self.models)]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def in_journal(folder: Path) -> dict[str, Run]:
    """Every run of one campaign's journal by its origin."""
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
            case "Metrics":
                run.points |= {
                    (p["key"], p["step"], p["time_ms"], _text(p["value"])) for p in record["points"]
                }
            case "Artifact":
                run.files |= dict(_files(folder / record["path"], record["folder"]))
            case "ModelSaved":
                run.models.append(record["name"])
            case "RunClosed":
                run.tags |= {
                    "outcome": record["outcome"],
                    **({"outcome_reason": record["reason"]} if record["reason"] else {}),
                }
                run.status = {"ok": "FINISHED", "interrupted": "KILLED", "pruned": "KILLED"}.get(
                    record["outcome"], "FAILED"
                )
    for run in runs.values():
        run.tags = {key: text for key, text in run.tags.items() if key not in OF_THE_MOMENT}
    return runs


def on_server(database: str, artifacts: Path) -> list[Run]:
    """Every run that is not deleted, from MLflow's tables and the folder that its server keeps artifacts in."""
    with (
        psycopg2.connect(database.replace("postgresql+psycopg2://", "postgresql://")) as connection,
        connection.cursor() as cursor,
    ):

        def rows(query: str) -> list[tuple[Any, ...]]:
            cursor.execute(query)
            return list(cursor.fetchall())

        found = rows(
            "SELECT run_uuid, name, status, artifact_uri FROM runs WHERE lifecycle_stage = 'active'"
        )
        runs = {run_id: Run("", name, status) for run_id, name, status, _ in found}
        for kind in ("tags", "params"):
            for run_id, key, text in rows(f"SELECT run_uuid, key, value FROM {kind}"):
                if run_id in runs:
                    getattr(runs[run_id], kind)[key] = text
        for run_id, key, step, time_ms, value, is_nan in rows(
            "SELECT run_uuid, key, step, timestamp, value, is_nan FROM metrics"
        ):
            if run_id in runs:
                runs[run_id].points.add((key, step, time_ms, "nan" if is_nan else _text(value)))
        for run_id, name in rows(
            "SELECT source_run_id, name FROM logged_models WHERE lifecycle_stage = 'active'"
        ):
            if run_id in runs:
                runs[run_id].models.append(name)
    for run_id, _, _, uri in found:
        run = runs[run_id]
        run.origin = run.tags.pop(f"{SHARED}.origin", "") or run.tags.get("origin", "")
        for part in [name for name in run.tags if name.startswith(SHARED)]:
            run.tags |= json.loads(run.tags.pop(part))
        run.files = dict(_files(artifacts / uri.removeprefix("mlflow-artifacts:/"), within=True))
    return list(runs.values())


def _files(path: Path, folder: str = "", *, within: bool = False) -> Iterator[tuple[str, str]]:
    """Each file with its SHA-256, a folder's named from inside of it, as MLflow names them."""
    if path.is_dir():
        for one in sorted(path.rglob("*")):
            if one.is_file():
                yield _joined(folder, one.relative_to(path).as_posix()), _sha256(one)
    elif path.is_file():
        yield _joined(folder, path.name), _sha256(path)
    else:
        assert within, f"{path} is not there"


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _text(value: float) -> str:
    return repr(math.copysign(LARGEST, value) if math.isinf(value) else float(value))
