"""Finished runs as one table with a row per run: the only shape that the comparison reads."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from experiments.metrics import without_copies
from tracking.records import StoredRun

TAG_COLUMNS = (
    *("kind", "campaign", "framework", "model", "dataset"),
    *("settings_hash", "machine", "team", "outcome", "outcome_reason"),
)
COUNTS = ("block", "order_in_block")
NAMED = dict.fromkeys((*TAG_COLUMNS, *COUNTS))
TEXTS = frozenset({"run_id", "name", "status", *TAG_COLUMNS})
FIRST = ("run_id", "name", "status", "start_ms", "end_ms", *TAG_COLUMNS, *COUNTS)


def table(runs: Iterable[StoredRun]) -> pd.DataFrame:
    """Return a table with one row per run.

    Columns: run_id, name, status, start_ms, end_ms, the schema's tags by their own names, params.X,
    tags.X, metrics. A missing value is NaN or None, never zero.
    """
    rows = pd.DataFrame([_row(run) for run in runs])
    frame = rows.reindex(columns=list(dict.fromkeys((*FIRST, *rows.columns))))
    # texts are objects, not Arrow's, since rows are taken many times; so are empty columns
    is_text = frame.columns.isin(TEXTS) | frame.columns.str.startswith(("params.", "tags."))
    frame = frame.astype(dict.fromkeys(frame.columns[is_text], object))
    return frame.assign(**{name: counts(frame[name]) for name in COUNTS})


def counts(column: pd.Series) -> pd.Series:
    """Return a column as numbers; as it is, if others name their blocks by texts."""
    numbers = pd.to_numeric(column, errors="coerce")
    return column if (numbers.isna() & column.notna()).any() else numbers


def _row(run: StoredRun) -> dict[str, object]:
    return {
        "run_id": run.run_id,
        "name": run.name,
        "status": run.status,
        "start_ms": run.start_ms,
        "end_ms": run.end_ms,
        **{name: run.tags[name] for name in NAMED if name in run.tags},
        **{f"params.{key}": value for key, value in run.params.items()},
        **{f"tags.{key}": value for key, value in run.tags.items() if key not in NAMED},
        **without_copies(run.metrics),
    }
