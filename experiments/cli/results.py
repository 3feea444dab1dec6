"""Log of a command's result as a run with its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.run.mlflow_run import keep
from tracking import clock
from tracking.records import (
    Artifact,
    Metrics,
    Point,
    Record,
    RunClosed,
    RunOpened,
    RunOutcome,
    Tags,
)
from tracking.store import Store


def log_result(
    store: Store,
    opened: RunOpened,
    points: Sequence[Point],
    tags: dict[str, str],
    folder: Path,
    outcome: RunOutcome,
    reason: str,
) -> str:
    """Log a run with metrics, tags and all files of a folder. Return its page.

    Raises:
        Rejected: If the server refuses a record.
        Unreachable: If the server does not answer.
    """
    records: list[Record] = [
        Artifact(opened.run, ".", ""),
        Metrics(opened.run, tuple(points)),
        Tags(opened.run, tags),
        RunClosed(opened.run, clock.now_ms(), outcome, reason),
    ]
    return keep(store, opened, records, folder, opened.tags["kind"])
