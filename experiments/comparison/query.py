"""Finished runs as one tidy table, a row a run: the only shape that the comparison reads."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from tracking.records import StoredRun

OWN_COLUMNS = (
    *("kind", "campaign", "framework", "model", "dataset"),
    *("settings_hash", "machine", "team", "outcome", "outcome_reason"),
)
COUNTS = ("block", "order_in_block")


def table(runs: Iterable[StoredRun]) -> pd.DataFrame:
    """One row a run: run_id, name, status, start_ms, end_ms, the schema's tags by their own names, params.X, tags.X, metrics.

    What a run does not have is missing (NaN or None), never zero.
    """
    rows = [_row(run) for run in runs]
    frame = pd.DataFrame(rows, columns=_columns(rows))
    frame = frame.astype(dict.fromkeys(OWN_COLUMNS, object))  # a column that no run fills stays one of text
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
    row |= {name: run.tags[name] for name in (*OWN_COLUMNS, *COUNTS) if name in run.tags}
    row |= {f"params.{key}": value for key, value in run.params.items()}
    row |= {f"tags.{key}": value for key, value in run.tags.items() if key not in (*OWN_COLUMNS, *COUNTS)}
    return row | dict(run.metrics)


def _columns(rows: Iterable[dict[str, object]]) -> list[str]:
    first = ("run_id", "name", "status", "start_ms", "end_ms", *OWN_COLUMNS, *COUNTS)
    others = {key: None for row in rows for key in row if key not in first}
    return [*first, *others]
