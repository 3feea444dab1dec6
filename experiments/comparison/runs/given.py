"""What a notebook has at hand as the table that the comparison reads: MLflow's own tables, run ids, or such a table itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from experiments.comparison.runs import names, query
from tracking import plain, technical
from tracking.errors import WrongCall
from tracking.records import RunKind, StoredRun

TAKEN = "give what mlflow.search_runs() returns, run ids, or a table with a row a run"
OF_MLFLOW = {"start_time": "start_ms", "end_time": "end_ms", "tags.mlflow.runName": "name"}


def table(given: Any) -> pd.DataFrame:
    """The table behind what was given. Raises WrongCall for what is none, Unreachable where run ids cannot be asked for."""
    if isinstance(given, pd.DataFrame):
        found = _from_search(given) if _is_of_mlflow(given) else given
    elif isinstance(given, str | StoredRun) or hasattr(given, "info"):
        found = table([given])
    elif isinstance(given, Iterable):
        found = _from_each(list(given))
    else:
        raise WrongCall(f"compare: {type(given).__name__} holds no runs; {TAKEN}")
    return _checked(_with_names(found))


def has_runs_of_mlflow(given: Any) -> bool:
    """Whether the runs behind what was given are on MLflow's tracking server, with their raw values."""
    return _is_of_mlflow(given) if isinstance(given, pd.DataFrame) else True


def _is_of_mlflow(frame: pd.DataFrame) -> bool:
    """A table of `query` has names of runs beside MLflow's tag of them."""
    named = {str(name) for name in frame.columns}
    return "run_id" in named and "name" not in named and bool(named & {"artifact_uri", *OF_MLFLOW})


def _from_search(frame: pd.DataFrame) -> pd.DataFrame:
    """MLflow names metrics and tags by their kind, and tells times as such."""
    frame = _with_technical(frame)
    found = frame.rename(columns={str(name): _plain(str(name)) for name in frame.columns})
    for name in ("start_ms", "end_ms"):
        if name in found.columns and pd.api.types.is_datetime64_any_dtype(found[name]):
            found[name] = (found[name] - pd.Timestamp(0, tz=found[name].dt.tz)) / pd.Timedelta(
                milliseconds=1
            )
    for name in query.COUNTS:
        if name in found.columns:
            found[name] = pd.to_numeric(found[name], errors="coerce")
    return found


def _with_technical(frame: pd.DataFrame) -> pd.DataFrame:
    """The tags that share one in columns of their own; a run of an earlier version has them there already."""
    written = [name for name in frame.columns if str(name).startswith(f"tags.{technical.TAG}")]
    if not written:
        return frame
    rows = [
        technical.unpacked(
            {
                str(name).removeprefix("tags."): text
                for name, text in row.items()
                if isinstance(text, str)
            }
        )
        for row in frame[written].to_dict("records")
    ]
    told = pd.DataFrame(rows, index=frame.index, dtype=object).add_prefix("tags.")
    plainly = frame.drop(columns=written)
    both = plainly.columns.intersection(told.columns)
    return pd.concat([plainly.drop(columns=both), told.combine_first(plainly[both])], axis=1)


def _plain(name: str) -> str:
    bare = name.removeprefix("tags.")
    return OF_MLFLOW.get(name) or (bare if bare in query.NAMED else name.removeprefix("metrics."))


def _from_each(given: list[Any]) -> pd.DataFrame:
    """Of run ids, MLflow's runs, or records of runs."""
    from tracking.store import stored_run

    found: dict[str, StoredRun] = {}
    for one in given:
        if isinstance(one, str):
            runs: Iterable[StoredRun] = _asked_for(one)
        elif isinstance(one, StoredRun) or hasattr(one, "info"):
            runs = [one if isinstance(one, StoredRun) else stored_run(one)]
        else:
            raise WrongCall(f"compare: {plain.short(repr(one))} is no run; {TAKEN}")
        found |= {run.run_id: run for run in runs}
    return query.table(found.values())


def _asked_for(run_id: str) -> Iterator[StoredRun]:
    """The run of that id; of a campaign its cells too."""
    from tracking.store import Store

    store = Store(to_read=True)
    run = store.run(run_id)
    if run is None:
        raise WrongCall(f"compare: no run {plain.short(run_id)} on {store.uri}; {TAKEN}")
    yield run
    if run.tags.get("kind") == RunKind.CAMPAIGN:
        yield from store.children(run_id, store.experiment_name(run_id))


def _with_names(frame: pd.DataFrame) -> pd.DataFrame:
    """With what the campaigns are called whose own runs are among those given."""
    if not {"run_id", "name", "kind"} <= {str(name) for name in frame.columns}:
        return frame
    campaigns = frame[frame["kind"] == RunKind.CAMPAIGN]
    return names.added(frame, dict(zip(campaigns["run_id"], campaigns["name"], strict=True)))


def _checked(frame: pd.DataFrame) -> pd.DataFrame:
    """Raises WrongCall for a table in which no run has a block: there is nothing to pair runs by."""
    if not frame.empty and ("block" not in frame.columns or not frame["block"].notna().any()):
        have = ", ".join(str(name) for name in frame.columns[:8])
        raise WrongCall(
            f"compare: no run says its block (tag or column `block`), by which runs are paired; have {have}, …"
        )
    return frame
