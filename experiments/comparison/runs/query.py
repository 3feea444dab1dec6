"""Finished runs as one table with a row per run: the only shape that the comparison reads."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from tracking.records import StoredRun

OWN_COLUMNS = (
    *("kind", "campaign", "framework", "model", "dataset"),
    *("settings_hash", "machine", "team", "outcome", "outcome_reason"),
)
COUNTS = ("block", "order_in_block")
NAMED = dict.fromkeys((*OWN_COLUMNS, *COUNTS))
TEXTS = frozenset({"run_id", "name", "status", *OWN_COLUMNS})
FIRST = ("run_id", "name", "status", "start_ms", "end_ms", *OWN_COLUMNS, *COUNTS)


def table(runs: Iterable[StoredRun]) -> pd.DataFrame:
    """Return a table with one row per run.

    Columns: run_id, name, status, start_ms, end_ms, the schema's tags by their own names, params.X,
    tags.X, metrics. A missing value is NaN or None, never zero.
    """
    columns: dict[str, list[object]] = {name: [] for name in FIRST}
    count = 0
    for run in runs:
        for name, value in _row(run).items():
            column = columns.setdefault(name, [])
            column += [math.nan] * (count - len(column))  # the runs before did not have it
            column.append(value)
        count += 1
    for column in columns.values():
        column += [math.nan] * (count - len(column))
    # texts are objects, not Arrow's, since rows are taken many times; so are empty columns
    texts = {name for name in columns if name in TEXTS or name.startswith(("params.", "tags."))}
    frame = pd.DataFrame(
        {
            name: pd.Series(column, dtype=object if name in texts else None)
            for name, column in columns.items()
        }
    )
    for name in COUNTS:
        frame[name] = pd.to_numeric(frame[name], errors="coerce")
    return frame


def _row(run: StoredRun) -> dict[str, object]:
    row: dict[str, object] = {
        "run_id": run.run_id,
        "name": run.name,
        "status": run.status,
        "start_ms": run.start_ms,
        "end_ms": run.end_ms,
    }
    row |= {name: run.tags[name] for name in NAMED if name in run.tags}
    row |= {f"params.{key}": value for key, value in run.params.items()}
    row |= {f"tags.{key}": value for key, value in run.tags.items() if key not in NAMED}
    return row | dict(run.metrics)
