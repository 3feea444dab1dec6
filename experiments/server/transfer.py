"""Runs of one server written down as a journal, so that another server can be told them: `import` is a replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from experiments.config.settings import require_writable
from experiments.contract import Progress
from experiments.server.settings import Export
from tracking import journal
from tracking.errors import WrongCall
from tracking.journal import Journal
from tracking.limits import is_origin
from tracking.records import Artifact, Metrics, Record, RunClosed, RunOpened, StoredRun
from tracking.store import Store

AT_ONCE = 4
POINTS_A_RECORD = 1_000
# Tags that hold another run's id.
POINTERS = ("campaign", "mlflow.parentRunId", "sweep", "confirmed_by")
# What the receiving server says itself.
OWN = ("mlflow.runName", "origin", "outcome", "outcome_reason", "heartbeat")


def export(settings: Export, progress: Progress) -> tuple[Path, int]:
    """Writes runs of experiments into a new folder; returns it with their number. Raises WrongCall, Unreachable."""
    store = Store(to_read=True)
    store.check()
    store.experiment_ids(settings.experiment)
    target = Path(settings.output).resolve()
    if _is_taken(target):
        raise WrongCall(f"output={target} is not empty; choose another folder")
    runs = [
        (name, run) for name in settings.experiment for run in store.runs(name, settings.filter)
    ]
    if not runs:
        raise WrongCall(
            f"no run in {', '.join(settings.experiment)} on {store.uri} matches; nothing to export"
        )
    require_writable(target, "output=DIR")
    runs.sort(
        key=lambda one: (
            any(key in one[1].tags for key in ("mlflow.parentRunId", "campaign")),
            one[1].start_ms,
        )
    )
    origins = {run.run_id: _origin(run) for _, run in runs}
    records = Journal(target)
    journal.write_campaign(
        target, {"study": "export", "run_id": "", "from": store.uri, "runs": len(runs)}
    )
    with ThreadPoolExecutor(AT_ONCE) as background:
        fetched = background.map(lambda one: _fetched(store, one[1], target), runs)
        for done, ((name, run), found) in enumerate(zip(runs, fetched, strict=True), start=1):
            for record in _records(store.uri, name, run, found, origins):
                records.append(record)
            progress("runs", done, len(runs))
    for name, run in runs:
        if any(
            run.tags.get(key) in origins for key in POINTERS
        ):  # once more: what it points at may have come after it
            records.append(_opened(store.uri, name, run, origins))
    records.close()
    return target, len(runs)


def _is_taken(target: Path) -> bool:
    try:
        return target.exists() and any(target.iterdir())
    except OSError as error:
        raise WrongCall(
            f"output={target} is no folder to write into: {error.strerror}; choose another folder"
        ) from None


def _origin(run: StoredRun) -> str:
    """The journal's id of a run, or one of its own where somebody wrote something else into the tag."""
    origin = run.tags.get("origin", "")
    return origin if is_origin(origin) else run.run_id


def _fetched(store: Store, run: StoredRun, target: Path) -> list[Record]:
    """What has to be asked for run by run: histories, data sets, files."""
    origin = _origin(run)
    points = [point for key in run.metrics for point in store.points(run.run_id, key)]
    found: list[Record] = [
        Metrics(origin, tuple(points[at : at + POINTS_A_RECORD]))
        for at in range(0, len(points), POINTS_A_RECORD)
    ]
    found += store.datasets(run.run_id, origin)
    for path in store.download(run.run_id, target / "files"):
        folder = path.rpartition("/")[0]
        found.append(Artifact(origin, f"files/{run.run_id}/{path}", folder))
    return found


def _records(
    uri: str, experiment: str, run: StoredRun, found: list[Record], origins: Mapping[str, str]
) -> Iterator[Record]:
    origin = origins[run.run_id]
    yield _opened(uri, experiment, run, origins)
    yield from found
    if run.end_ms:
        outcome = run.tags.get("outcome", "ok" if run.status == "FINISHED" else "failed")
        yield RunClosed(origin, run.end_ms, outcome, run.tags.get("outcome_reason", ""), run.status)


def _opened(uri: str, experiment: str, run: StoredRun, origins: Mapping[str, str]) -> RunOpened:
    tags = {key: text for key, text in run.tags.items() if key not in OWN}
    tags |= {key: f"run:{origins[tags[key]]}" for key in POINTERS if tags.get(key) in origins}
    tags |= {"exported_run_id": run.run_id, "exported_from": uri}
    return RunOpened(
        origins[run.run_id], run.start_ms, experiment, run.name, tags, dict(run.params)
    )
