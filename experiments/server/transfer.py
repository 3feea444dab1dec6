"""Export of a server's runs as a journal; `import` on another server is a replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from experiments.config.settings import require_writable
from experiments.contract import Progress
from experiments.server.settings import Export
from tracking import journal
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Journal
from tracking.limits import is_origin
from tracking.records import Artifact, Metrics, Record, RunClosed, RunOpened, StoredRun
from tracking.store import Store

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
    points = [point for key in run.metrics for point in store.points(run.run_id, key)]
    records: list[Record] = [
        Metrics(origin, tuple(points[at : at + POINTS_A_RECORD]))
        for at in range(0, len(points), POINTS_A_RECORD)
    ]
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
