"""Table of runs from the inputs of a notebook: MLflow's tables, run ids, runs, or such a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from experiments.comparison.runs import names, query
from experiments.metrics import without_copies
from tracking import plain, technical
from tracking.errors import ErrorCode, UsageError
from tracking.records import RunKind, StoredRun

TAKEN = "give what mlflow.search_runs() returns, run ids, or a table with a row a run"
OF_MLFLOW = {"start_time": "start_ms", "end_time": "end_ms", "tags.mlflow.runName": "name"}


def table(runs: Any) -> pd.DataFrame:
    """Return the table of runs in any form.

    Raises:
        UsageError: The argument holds no runs.
        Unreachable: Run ids cannot be looked up.
    """
    if isinstance(runs, pd.DataFrame):
        frame = _from_search(runs) if has_runs_of_mlflow(runs) else runs
    elif isinstance(runs, str):
        frame = _from_each([runs])
    elif isinstance(runs, Iterable):
        frame = _from_each(list(runs))
    else:
        raise UsageError(
            ErrorCode.INVALID_VALUE, f"compare: {type(runs).__name__} holds no runs; {TAKEN}"
        )
    columns = [str(name) for name in frame.columns]
    if {"run_id", "name", "start_ms", "kind"} <= set(columns):
        campaigns = frame[frame["kind"] == RunKind.CAMPAIGN]
        of_campaigns = (campaigns[column] for column in ("run_id", "name", "start_ms"))
        frame = names.add_names(frame, zip(*of_campaigns, strict=True))
    return frame


def has_runs_of_mlflow(runs: Any) -> bool:
    """Return whether the runs are on MLflow's tracking server, with their raw values.

    A table counts as MLflow's by its columns: one of `query` has a column of names.
    """
    if not isinstance(runs, pd.DataFrame):
        return True
    named = {str(name) for name in runs.columns}
    return "run_id" in named and "name" not in named and bool(named & {"artifact_uri", *OF_MLFLOW})


def _from_search(frame: pd.DataFrame) -> pd.DataFrame:
    """Return MLflow's table with the names and types of `query.table`."""
    frame = _with_details(_with_technical(frame))
    table = frame.rename(columns={str(name): _plain(str(name)) for name in frame.columns})
    for name in ("start_ms", "end_ms"):
        if name in table.columns and pd.api.types.is_datetime64_any_dtype(table[name]):
            since_1970 = table[name] - pd.Timestamp(0, tz=table[name].dt.tz)
            table[name] = since_1970 / pd.Timedelta(milliseconds=1)
    for name in query.COUNTS:
        if name in table.columns:
            table[name] = query.counts(table[name])
    return table


def _with_technical(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with separate columns for the tags that share one."""
    shared = [name for name in frame.columns if str(name).startswith(f"tags.{technical.TAG}")]
    if not shared:
        return frame
    rows = []
    for row in frame[shared].to_dict("records"):
        tags = {str(name)[5:]: text for name, text in row.items() if isinstance(text, str)}
        rows.append(technical.unpack_tags(tags))
    unpacked = pd.DataFrame(rows, index=frame.index, dtype=object).add_prefix("tags.")
    rest = frame.drop(columns=shared)
    both = rest.columns.intersection(unpacked.columns)
    return pd.concat([rest.drop(columns=both), unpacked.combine_first(rest[both])], axis=1)


def _with_details(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the metrics that MLflow does not show, without those it shows twice."""
    metrics, details = "metrics.", f"tags.{technical.METRIC}"
    added = {
        name: pd.to_numeric(frame[name], errors="coerce")
        for name in map(str, frame.columns)
        if name.startswith(details)
    }
    table = frame.drop(columns=list(added))
    for name, values in added.items():
        key = f"{metrics}{name.removeprefix(details)}"
        table[key] = values.combine_first(table[key]) if key in table.columns else values
    keys = {name: 0.0 for name in map(str, table.columns) if name.startswith(metrics)}
    return table.drop(columns=list(keys.keys() - without_copies(keys)))


def _plain(name: str) -> str:
    bare = name.removeprefix("tags.")
    return OF_MLFLOW.get(name) or (bare if bare in query.NAMED else name.removeprefix("metrics."))


def _from_each(runs: list[Any]) -> pd.DataFrame:
    """Return the table of run ids or MLflow's runs."""
    from tracking.reader import stored_run

    stored: dict[str, StoredRun] = {}
    for run in runs:
        if isinstance(run, str):
            stored |= {cell.run_id: cell for cell in _by_id(run)}
        elif hasattr(run, "info"):
            stored[run.info.run_id] = stored_run(run)
        else:
            raise UsageError(
                ErrorCode.INVALID_VALUE, f"compare: {plain.short(repr(run))} is no run; {TAKEN}"
            )
    return query.table(stored.values())


def _by_id(run_id: str) -> Iterator[StoredRun]:
    """Yield a run and, if it is a campaign, its cells."""
    from tracking.reader import Reader

    store = Reader(to_read=True)
    run = store.run(run_id)
    if run is None:
        raise UsageError(
            ErrorCode.NOT_FOUND, f"compare: no run {plain.short(run_id)} on {store.uri}; {TAKEN}"
        )
    yield run
    if run.tags.get("kind") == RunKind.CAMPAIGN:
        yield from store.runs(store.experiment_name(run_id), f"tags.campaign = '{run_id}'")
