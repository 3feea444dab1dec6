"""Runs written into a tracking database with MLflow's table definitions.

Logging them through a store takes far longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from mlflow.store.tracking.dbmodels.models import (
    SqlLatestMetric,
    SqlMetric,
    SqlParam,
    SqlRun,
    SqlTag,
)
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy import insert

from tracking.records import StoredRun
from tracking.technical import packed

RUNS_A_CALL = 500


def fill(database: str, runs: Iterable[StoredRun], experiment: str) -> int:
    """Write runs into the database of a tracking store. Return their number."""
    store = SqlAlchemyStore(database, "mlflow-artifacts:/")
    found = store.get_experiment_by_name(experiment)
    place = found.experiment_id if found else store.create_experiment(experiment)
    root = store.get_experiment(place).artifact_location
    count, rest = 0, iter(runs)
    while some := list(islice(rest, RUNS_A_CALL)):
        with store.engine.begin() as connection:
            for table, rows in _rows(some, int(place), root).items():
                connection.execute(insert(table), rows)
        count += len(some)
    store.engine.dispose()
    return count


def _rows(runs: Sequence[StoredRun], experiment: int, root: str) -> dict[Any, list[dict[str, Any]]]:
    points = [
        {
            "run_uuid": run.run_id,
            "key": key,
            "timestamp": run.end_ms or run.start_ms,
            "step": 0,
            **_kept(value),
        }
        for run in runs
        for key, value in run.metrics.items()
    ]
    return {
        SqlRun.__table__: [
            {
                **{
                    "run_uuid": run.run_id,
                    "name": run.name,
                    "status": run.status,
                    "user_id": "nobody",
                    "source_type": "LOCAL",
                },
                **{
                    "start_time": run.start_ms,
                    "end_time": run.end_ms,
                    "experiment_id": experiment,
                    "lifecycle_stage": "active",
                },
                **{
                    "artifact_uri": f"{root}/{run.run_id}/artifacts",
                    "source_name": "",
                    "entry_point_name": "",
                    "source_version": "",
                },
            }
            for run in runs
        ],
        SqlTag.__table__: [
            {"run_uuid": run.run_id, "key": k, "value": v}
            for run in runs
            for k, v in packed(run.tags).items()
        ],
        SqlParam.__table__: [
            {"run_uuid": run.run_id, "key": k, "value": v}
            for run in runs
            for k, v in run.params.items()
        ],
        SqlMetric.__table__: points,
        SqlLatestMetric.__table__: points,
    }


def _kept(value: float) -> dict[str, Any]:
    """As MLflow keeps it: what is no number is marked, and infinity the largest number that there is."""
    largest = np.finfo(float).max
    return {
        "value": 0.0 if np.isnan(value) else float(np.clip(value, -largest, largest)),
        "is_nan": bool(np.isnan(value)),
    }
