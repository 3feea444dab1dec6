"""Runs written into a tracking database with MLflow's table definitions.

Logging them through a store takes far longer. The campaigns are SYNTHETIC: nothing was measured.
Every value is drawn around made-up sizes and effects; runs carry the tag `synthetic = true`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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

from experiments.config.settings import as_text
from experiments.metrics import KNOWN
from experiments.studies.captioning import Settings
from tracking.records import RunOutcome, StoredRun
from tracking.technical import pack_tags

EXPERIMENT = "synthetic"
# Made up: how long a step takes against PyTorch's.
FRAMEWORKS = {"pytorch": 1.0, "tensorflow": 1.08, "keras-jax": 0.94, "keras-torch": 1.21}
FIRST_MS = 1_760_000_000_000
FAILED_SHARE = 0.02
LARGEST = np.finfo(float).max  # MLflow's value of infinity
RUNS_A_CALL, METRICS, PARAMS, TAGS = 500, 60, 60, 30
SAME_TAGS = {
    "synthetic": "true",
    "kind": "cell",
    "model": "caption_decoder",
    "dataset": "scenes",
    "settings_hash": "5e771465",
    "environment": "e1",
    "machine": "box0",
    "commit": "0" * 12,
    "mlflow.user": "nobody",
    "mlflow.source.name": "synthetic",
    "weights": "random",
}


def campaigns(runs: int, *, blocks: int = 25) -> Iterator[StoredRun]:
    """Yield cell runs of campaigns, the same for the same arguments.

    Frameworks are in random order in each block.
    """
    rng = np.random.default_rng(0)
    metrics, settings = _names([outcome.metric for outcome in KNOWN], METRICS), as_text(Settings())
    params = {name: settings.get(name, "1") for name in _names(list(settings), PARAMS)}
    for number in range(runs):
        campaign, cell = divmod(number, blocks * len(FRAMEWORKS))
        if cell == 0:
            campaign_id = rng.bytes(16).hex()
        block, order = divmod(cell, len(FRAMEWORKS))
        if order == 0:
            shuffled = rng.permutation(list(FRAMEWORKS)).tolist()
        framework, failed = str(shuffled[order]), rng.random() < FAILED_SHARE
        noise = np.exp(rng.normal(0.002 * block, 0.01, len(metrics))).tolist()
        values = {name: FRAMEWORKS[framework] * by for name, by in zip(metrics, noise, strict=True)}
        tags = {
            **SAME_TAGS,
            "framework": framework,
            "treatment": framework,
            "block": str(block),
            "order_in_block": str(order),
            "campaign": campaign_id,
            "team": ("vision", "language")[campaign % 2],
            "outcome": RunOutcome.OUT_OF_MEMORY if failed else RunOutcome.OK,
            "cell": f"{block}-{framework}",
            "mlflow.runName": f"{framework} · block {block}",
        }
        start_ms = FIRST_MS + number * 60_000
        yield StoredRun(
            rng.bytes(16).hex(),
            tags["mlflow.runName"],
            "FAILED" if failed else "FINISHED",
            start_ms,
            start_ms + 50_000,
            {**params, "framework": framework},
            dict(islice(values.items(), 3)) if failed else values,
            {name: str(tags.get(name, "synthetic")) for name in _names(list(tags), TAGS)},
        )


def _names(names: Sequence[str], count: int) -> list[str]:
    """Return the first names, completed by synthetic ones."""
    return [*names, *(f"synthetic_{i:02}" for i in range(count - len(names)))][:count]


def fill(database: str, runs: Iterable[StoredRun], experiment: str) -> int:
    """Write runs into the database of a tracking store. Return their number."""
    store = SqlAlchemyStore(database, "mlflow-artifacts:/")
    existing = store.get_experiment_by_name(experiment)
    place = existing.experiment_id if existing else store.create_experiment(experiment)
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
            "value": 0.0 if np.isnan(value) else float(np.clip(value, -LARGEST, LARGEST)),
            "is_nan": bool(np.isnan(value)),
        }
        for run in runs
        for key, value in run.metrics.items()
    ]
    return {
        SqlRun.__table__: [
            {
                "run_uuid": run.run_id,
                "name": run.name,
                "status": run.status,
                "user_id": "nobody",
                "source_type": "LOCAL",
                "start_time": run.start_ms,
                "end_time": run.end_ms,
                "experiment_id": experiment,
                "lifecycle_stage": "active",
                "artifact_uri": f"{root}/{run.run_id}/artifacts",
                "source_name": "",
                "entry_point_name": "",
                "source_version": "",
            }
            for run in runs
        ],
        SqlTag.__table__: [
            {"run_uuid": run.run_id, "key": k, "value": v}
            for run in runs
            for k, v in pack_tags(run.tags).items()
        ],
        SqlParam.__table__: [
            {"run_uuid": run.run_id, "key": k, "value": v}
            for run in runs
            for k, v in run.params.items()
        ],
        SqlMetric.__table__: points,
        SqlLatestMetric.__table__: points,
    }
