"""Table of runs from MLflow's tables, run ids or runs, and its refusal without level or block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from experiments.comparison.runs import names, pairing, query
from experiments.comparison.runs.expected_differences import HARDWARE, SOFTWARE
from experiments.metrics import without_copies
from tracking import plain, technical
from tracking.errors import ErrorCode, UsageError
from tracking.records import RunKind, StoredRun

TAKEN = "give what mlflow.search_runs() returns, run ids, or a table with a row a run"
OF_MLFLOW = {"start_time": "start_ms", "end_time": "end_ms", "tags.mlflow.runName": "name"}

MAX_LEVELS = 10
# MLflow's tags of a run that may tell levels apart.
FACTORS_OF_MLFLOW = ("tags.mlflow.source.name", "tags.mlflow.source.git.commit")
SAME_CLASS = "tags.estimator_class"  # as estimator_name, but longer


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


def check_level_and_block(table: pd.DataFrame, factor: str, pair_by: str) -> None:
    """Check that some cell has a level, and some a block.

    Raises:
        UsageError: If not, with the tags and options that would add them.
    """
    frame = pairing.without_controls(table)
    frame = frame[pairing.are_cells(frame)]
    has_level, has_block = _has(frame, factor), bool(pair_by) or _has(frame, "block")
    if frame.empty or (has_level and has_block):
        return
    names = [] if has_level else [factor]
    names += [] if has_block else ["block"]
    column = factor if has_level else next(_factors(frame), "")
    options = []
    if not has_level and column:
        values = ", ".join(sorted(set(pairing.as_text(frame[column])))[:3])
        options.append(f"--factor {pairing.plain_name(column)} ({values})")
    if not has_block:
        options.append(f"--pair_by {_pairing(frame, column)}")
    call = f"call with {' and '.join(options)}, or " if options else ""
    example = ", ".join(f'"{name}": "{1 if name == "block" else "a"}"' for name in names)
    raise UsageError(
        ErrorCode.MISSING_VALUE,
        f"no run has the tag {' or '.join(names)}; {call}"
        f"tag them: mlflow.MlflowClient().set_tag(RUN_ID, '{names[-1]}', '1'); "
        f"new runs: export MLFLOW_RUN_CONTEXT='{{{example}}}'",
    )


def _has(frame: pd.DataFrame, name: str) -> bool:
    if not {name, f"params.{name}"} & set(frame.columns) and name in ("framework", "block"):
        return False
    return bool((pairing.as_text(frame[pairing.column_of(frame, name)]) != "").any())


def _factors(frame: pd.DataFrame) -> Iterator[str]:
    """Yield the columns that may be the factor, the likeliest first: tags, then few values."""
    candidates = []
    for column in map(str, frame.columns):
        is_tag = column.startswith("tags.") and not column.startswith("tags.mlflow.")
        if not (is_tag or column in FACTORS_OF_MLFLOW or column.startswith("params.")):
            continue
        texts = pairing.as_text(frame[column])
        counts = texts.value_counts()
        if 2 <= len(counts) <= MAX_LEVELS and counts.min() >= 2 and (texts != "").all():
            is_condition = column.startswith((*SOFTWARE, *HARDWARE))
            rank = (
                is_condition,
                not is_tag,
                column not in FACTORS_OF_MLFLOW,
                column == SAME_CLASS,
                len(counts),
            )
            candidates.append((rank, column))
    yield from (column for _, column in sorted(candidates))


def _pairing(frame: pd.DataFrame, factor: str) -> str:
    """Return a setting of which each level has every value once, or `time`."""
    if not factor:
        return "time"
    levels = pairing.as_text(frame[pairing.column_of(frame, factor)])
    for column in map(str, frame.columns):
        if column.startswith("params.") and column != factor:
            values = pairing.as_text(frame[column])
            shared = levels.groupby(values).nunique() == levels.nunique()
            is_once = not pd.DataFrame({"level": levels, "value": values}).duplicated().any()
            if is_once and len(shared) > 1 and shared.all():
                return pairing.plain_name(column)
    return "time"
