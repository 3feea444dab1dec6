"""Runs of a campaign as its journal has them: what is judged, results of cells, open runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from experiments.metrics import BY_EPOCH
from experiments.run.scheduler import CellResult
from tracking import clock, journal
from tracking.journal import Journal
from tracking.records import (
    LOADS,
    Artifact,
    Metrics,
    Point,
    RepeatCause,
    RunClosed,
    RunKind,
    RunOpened,
    RunOutcome,
    StoredRun,
    Tags,
)

# Tags of a campaign's run: the block that is measured once more, why, and by which rule.
ODD_BLOCK, RULE, REASON = "odd_block", "odd_block.rule", "odd_block.reason"
NEVER = -1


@dataclass
class JournalRun:
    """Run by its records.

    Attributes:
        closed_at: Number of the record that closed it.
        tagged_at: Number of the record that set a tag last.
        metrics: Key -> the greatest step, and the value there.
        epochs: Values of each metric by epoch; all others would not fit into memory.
        files: Paths of its artifacts below the journal's folder.
    """

    opened: RunOpened | None = None
    closed: RunClosed | None = None
    closed_at: int = NEVER
    tags: dict[str, str] = field(default_factory=dict)
    tagged_at: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, tuple[int, float]] = field(default_factory=dict)
    epochs: dict[str, list[Point]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    def take(self, number: int, record: object) -> None:
        if isinstance(record, RunOpened):
            self.opened, self.tags = record, {**record.tags, **self.tags}
        elif isinstance(record, RunClosed):
            self.closed, self.closed_at = record, number
        elif isinstance(record, Tags):
            self.tags |= record.values
            self.tagged_at |= dict.fromkeys(record.values, number)
        elif isinstance(record, Metrics):
            for point in record.points:
                if point.key not in self.metrics or point.step >= self.metrics[point.key][0]:
                    self.metrics[point.key] = (point.step, point.value)
                if point.key in BY_EPOCH:
                    self.epochs.setdefault(point.key, []).append(point)
        elif isinstance(record, Artifact):
            self.files.append(record.path)


def read(folder: Path) -> dict[str, JournalRun]:
    runs: dict[str, JournalRun] = {}
    for number, record in enumerate(journal.read_all(folder)):
        if record.run not in runs:
            runs[record.run] = JournalRun()
        runs[record.run].take(number, record)
    return runs


class JournalRuns:
    """Runs below a campaign, as the tracking server would return them, with their raw values.

    Args:
        folder: Of the campaign's journal.
        run_ids: The server's ids of runs by those of the journal, which are used for all others.
    """

    def __init__(self, folder: Path, run_ids: Mapping[str, str] = MappingProxyType({})) -> None:
        self._folder, self._run_ids = folder, run_ids
        self._runs = {
            run_ids.get(origin, origin): (run.opened, run)
            for origin, run in read(folder).items()
            if run.opened and run.opened.tags.get("kind") != RunKind.CAMPAIGN
        }

    def stored(self) -> Iterator[StoredRun]:
        for run_id, (first, run) in self._runs.items():
            status, end_ms, tags = "RUNNING", None, dict(run.tags)
            if end := run.closed:
                status, end_ms = end.status or RunOutcome(end.outcome).status, end.time_ms
                reason = {"outcome_reason": end.reason} if end.reason else {}
                tags |= {"outcome": end.outcome, **reason}
            if campaign := tags.get("campaign"):
                tags["campaign"] = self._run_ids.get(campaign.removeprefix("run:"), campaign)
            times = first.time_ms, end_ms
            metrics = {key: value for key, (_, value) in run.metrics.items()}
            yield StoredRun(run_id, first.name, status, *times, first.params, metrics, tags)

    def file(self, run_id: str, path: str, _: Path) -> Path | None:
        paths = [file for file in self._runs[run_id][1].files if file.endswith(f"/{path}")]
        return self._folder / paths[-1] if paths else None

    def points(self, run_id: str, key: str) -> list[Point]:
        return self._runs[run_id][1].epochs.get(key, [])


def stored(folder: Path) -> Iterator[StoredRun]:
    """Yield the runs below a campaign, with the journal's ids."""
    return JournalRuns(folder).stored()


def cell_results(folder: Path) -> dict[str, CellResult]:
    """Return the last result of every cell that has a closed run, or its last success, by key.

    A cell of the odd block that ended before that was detected requests a repetition.
    """
    runs = read(folder)
    odd = next((run for run in runs.values() if ODD_BLOCK in run.tags), JournalRun())
    results: list[tuple[str, CellResult]] = []
    for run in sorted(runs.values(), key=lambda run: run.closed_at):
        key = run.tags.get("cell", "")
        if not key or not run.closed or run.closed.outcome not in set(RunOutcome):
            continue
        disturbed, is_repeat = run.tags.get("disturbed", ""), "repeats" in run.tags
        cause = RepeatCause.BUSY_MACHINE
        is_before = odd.tags and run.closed_at < odd.tagged_at[ODD_BLOCK]
        if is_before and block_of(key) == int(odd.tags[ODD_BLOCK]):
            disturbed, is_repeat, cause = odd.tags[REASON], False, RepeatCause.ODD_BLOCK
        result = CellResult(
            RunOutcome(run.closed.outcome),
            run.tags.get("phase", ""),
            metrics={name: run.metrics[name][1] for name in LOADS if name in run.metrics},
            disturbed=disturbed,
            repeat=is_repeat,
            machine=run.tags.get("machine", ""),
            cause=cause,
        )
        results.append((key, result))
    return dict(results) | {key: result for key, result in results if result.ok}


def block_of(key: str) -> int:
    return int(key.split("-")[1])


def tags(folder: Path, run: str) -> dict[str, str]:
    return read(folder).get(run, JournalRun()).tags


def looks(folder: Path, campaign: str) -> tuple[int, ...]:
    """Return the blocks after which a campaign was judged while more could come."""
    text = tags(folder, campaign).get("looks", "")
    return tuple(map(int, text.split(","))) if text else ()


def close_open_runs(records: Journal, reason: str) -> None:
    """End runs that an earlier process of this journal has left open as interrupted."""
    for name, run in read(records.folder).items():
        if run.opened and not run.closed:
            records.append(RunClosed(name, clock.now_ms(), RunOutcome.INTERRUPTED, reason))
