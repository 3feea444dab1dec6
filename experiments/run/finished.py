"""The finished runs of a campaign as its journal holds them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from experiments.comparison.runs import raw
from tracking import journal
from tracking.records import Artifact, Metrics, RunClosed, RunKind, RunOpened, RunOutcome, StoredRun, Tags


def values(folder: Path) -> dict[str, Path]:
    """The steps of every run in the journal's own folder."""
    files = (record for record in journal.read_all(folder) if isinstance(record, Artifact))
    return {one.run: folder / one.path for one in files if one.path.endswith(f"/{raw.VALUES}")}


def from_journal(folder: Path) -> Iterable[StoredRun]:
    """The runs below the campaign as its journal holds them, for when the server is away."""
    opened: dict[str, RunOpened] = {}
    closed: dict[str, RunClosed] = {}
    tags: dict[str, dict[str, str]] = {}
    metrics: dict[str, dict[str, tuple[int, float]]] = {}
    for record in journal.read_all(folder):
        if isinstance(record, RunOpened):
            opened[record.run] = record
            tags[record.run], metrics[record.run] = {**record.tags, **tags.get(record.run, {})}, metrics.get(record.run, {})
        elif isinstance(record, Tags):
            tags.setdefault(record.run, {}).update(record.values)
        elif isinstance(record, RunClosed):
            closed[record.run] = record
        elif isinstance(record, Metrics):
            latest = metrics.setdefault(record.run, {})
            for point in record.points:
                if point.key not in latest or point.step >= latest[point.key][0]:
                    latest[point.key] = (point.step, point.value)
    for run, first in opened.items():
        if first.tags.get("kind") != RunKind.CAMPAIGN:
            values = {key: value for key, (_, value) in metrics[run].items()}
            yield _as_stored(first, closed.get(run), tags[run], values)


def _as_stored(first: RunOpened, end: RunClosed | None, tags: dict[str, str], metrics: dict[str, float]) -> StoredRun:
    ended = {"outcome": end.outcome, "outcome_reason": end.reason} if end else {}
    status = (end.status or RunOutcome(end.outcome).status) if end else "RUNNING"
    return StoredRun(
        first.run, first.name, status, first.time_ms, end.time_ms if end else None, first.params, metrics, {**tags, **ended}
    )
