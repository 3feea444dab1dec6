"""Journals of a server's runs: export, and replay, which changes nothing when it is repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from experiments.config import shell
from experiments.config.console import Display
from experiments.config.settings import require_writable
from experiments.contract import Progress
from experiments.server.settings import Export
from tracking import journal
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Damages, Journal
from tracking.limits import is_origin
from tracking.records import Artifact, Metrics, Point, Record, RunClosed, RunOpened, StoredRun
from tracking.store import Store, Unreachable

AT_ONCE = 4
POINTS_A_RECORD = 1_000
# Tags that hold the id of another run.
POINTERS = ("campaign", "mlflow.parentRunId", "sweep", "confirmed_by")
# Tags that the receiving server sets.
SET_BY_SERVER = ("mlflow.runName", "origin", "outcome", "outcome_reason", "heartbeat")


def export(settings: Export, progress: Progress) -> tuple[Path, int]:
    """Write runs of experiments into a new folder. Return it with their number."""
    store = Store(to_read=True)
    store.check()
    store.experiment_ids(settings.experiment)
    target = Path(settings.output).resolve()
    runs = [
        (name, run) for name in settings.experiment for run in store.runs(name, settings.filter)
    ]
    if not runs:
        experiments = ", ".join(settings.experiment)
        raise UsageError(
            ErrorCode.NO_RUNS,
            f"no run in {experiments} on {store.uri} matches filter={settings.filter}",
        )
    require_writable(target, "output=DIR")
    if any(target.iterdir()):
        raise UsageError(ErrorCode.EXISTS, f"output={target} is not empty; choose another folder")
    runs.sort(key=lambda item: (any(key in item[1].tags for key in POINTERS[:2]), item[1].start_ms))
    tags = {run.run_id: run.tags.get("origin", "") for _, run in runs}
    origins = {run_id: tag if is_origin(tag) else run_id for run_id, tag in tags.items()}
    records = Journal(target)
    description = {"study": "export", "run_id": "", "from": store.uri, "runs": len(runs)}
    journal.write_campaign(target, description)
    with ThreadPoolExecutor(AT_ONCE) as background:
        fetched = background.map(
            lambda item: _fetch(store, item[1], origins[item[1].run_id], target), runs
        )
        for done, ((name, run), details) in enumerate(zip(runs, fetched, strict=True), start=1):
            for record in _records(store.uri, name, run, details, origins):
                records.append(record)
            progress("runs", done, len(runs))
    for name, run in runs:  # once more, since the run that a tag points at may have come later
        if any(run.tags.get(key) in origins for key in POINTERS):
            records.append(_opened(store.uri, name, run, origins))
    records.close()
    return target, len(runs)


def _fetch(store: Store, run: StoredRun, origin: str, target: Path) -> list[Record]:
    """Return histories, data sets and files of a run."""
    shown = [key for key in run.metrics if key not in run.details]
    points = [point for key in shown for point in store.points(run.run_id, key)]
    details = tuple(Point(key, run.metrics[key], 0, run.start_ms) for key in sorted(run.details))
    records: list[Record] = [
        Metrics(origin, tuple(points[start : start + POINTS_A_RECORD]))
        for start in range(0, len(points), POINTS_A_RECORD)
    ]
    if details:
        records.append(Metrics(origin, details, detail=True))
    records += store.datasets(run.run_id, origin)
    for path in store.download(run.run_id, target / "files"):
        folder = path.rpartition("/")[0]
        records.append(Artifact(origin, f"files/{run.run_id}/{path}", folder))
    return records


def _records(
    uri: str, experiment: str, run: StoredRun, details: list[Record], origins: Mapping[str, str]
) -> Iterator[Record]:
    yield _opened(uri, experiment, run, origins)
    yield from details
    if run.end_ms:
        outcome = run.tags.get("outcome", "ok" if run.status == "FINISHED" else "failed")
        reason = run.tags.get("outcome_reason", "")
        yield RunClosed(origins[run.run_id], run.end_ms, outcome, reason, run.status)


def _opened(uri: str, experiment: str, run: StoredRun, origins: Mapping[str, str]) -> RunOpened:
    tags = {key: text for key, text in run.tags.items() if key not in SET_BY_SERVER}
    tags |= {key: f"run:{origins[tags[key]]}" for key in POINTERS if tags.get(key) in origins}
    tags |= {"exported_run_id": run.run_id, "exported_from": uri}
    origin = origins[run.run_id]
    return RunOpened(origin, run.start_ms, experiment, run.name, tags, dict(run.params))


@dataclass
class ReplayResult:
    """Result of one journal. `waiting`: records that were not sent, because of `trouble`."""

    refused: list[str] = field(default_factory=list)
    damaged: Damages = field(default_factory=dict)
    waiting: int = 0
    trouble: str = ""


def replay(folder: Path, display: Display) -> bool:
    """Send a journal, or those of a folder. Return whether the server has everything then.

    Raises:
        UsageError: There is no journal, or no server.
    """
    folders = _journals(folder)
    store = Store()
    store.check()
    results: list[ReplayResult] = []
    away = ""
    for number, path in enumerate(folders):
        display.step("replay", number, len(folders))
        if away:
            results.append(ReplayResult(waiting=journal.count(path), trouble=away))
            continue
        results.append(_send(store, path))
        away = results[-1].trouble if results[-1].waiting else ""
    display.rest()
    lines = _lines(results, folder, store.uri)
    for line in lines:
        display.say(f"! {line}")
    sent, plural = sum(not result.trouble for result in results), "s" if len(folders) != 1 else ""
    display.say(f"{sent} of {len(folders)} journal{plural} sent to {store.uri}")
    return not lines


def _journals(folder: Path) -> list[Path]:
    try:
        is_journal = (folder / journal.RECORDS).exists()
        paths = [] if is_journal else sorted(folder.glob(f"*/{journal.RECORDS}"))
        folders = [folder] if is_journal else [path.parent for path in paths]
    except (OSError, ValueError) as error:
        raise UsageError(
            ErrorCode.UNREADABLE, f"journal={folder} cannot be read: {error}; give another folder"
        ) from None
    if not folders:
        raise UsageError(
            ErrorCode.NOT_FOUND,
            f"no journal in {folder.resolve()}; "
            f"give journal=DIR, a campaign's folder or one that holds several",
        )
    return folders


def _send(store: Store, folder: Path) -> ReplayResult:
    result, offset = ReplayResult(), 0
    try:
        store.expect(journal.opened_runs(folder, result.damaged), journal.experiment(folder))
        records, after = journal.read(folder)
        while after != offset:
            result.refused += store.apply(records, folder)
            offset = after
            records, after = journal.read(folder, offset)
        with contextlib.suppress(OSError):  # a read-only journal
            journal.mark_delivered(folder, offset, store.uri)
    except Unreachable as error:
        result.waiting, result.trouble = journal.count(folder, offset), str(error)
    except (UsageError, OSError) as error:
        result.trouble = str(error)
    return result


def _lines(results: Sequence[ReplayResult], folder: Path, uri: str) -> list[str]:
    damaged = [line for result in results for line in result.damaged.values()]
    refused = [f"refused: {line}" for result in results for line in result.refused]
    lines = journal.first_few(damaged) + journal.first_few(refused)
    lines += [result.trouble for result in results if result.trouble and not result.waiting]
    again = shell.command("replay", "--journal", str(folder))
    if waiting := sum(result.waiting for result in results):
        reason = next(result.trouble for result in results if result.waiting)
        lines.append(f"{waiting:,} records wait: {uri}: {reason}; send them when it can: {again}")
    elif refused:
        lines.append(f"what was refused stays in the journal; send it again: {again}")
    return lines
