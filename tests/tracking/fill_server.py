"""Fills a tracking server's database with SYNTHETIC campaigns.

Nothing was measured: every value is drawn from a seeded generator around made-up sizes and made-up framework effects, to find out
how reading behaves with many runs. Names, tags and params are those of docs/schema.md and of the captioning study; what is asked
for beyond them is called `synthetic_…`. Runs carry the tag `synthetic = true` and stand in an experiment called `synthetic`.

Rows go straight into the database with MLflow's own table definitions: logging 10,000 runs through the server takes far longer.
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
from tracking.technical import packed

EXPERIMENT = "synthetic"
# Made up: how long a step takes against PyTorch's.
FRAMEWORKS = {"pytorch": 1.0, "tensorflow": 1.08, "keras-jax": 0.94, "keras-torch": 1.21}
BATCHED = [
    f"inference/batch_{size}/{name}"
    for size in (2, 4, 8, 16, 32, 64)
    for name in (
        "latency_seconds_p50",
        "latency_seconds_p95",
        "latency_seconds_p99",
        "first_call_seconds",
        "examples_per_second",
    )
]
# By ending: a typical value, and the power of a framework's factor that it goes with.
SIZES = {
    "_per_second": (900.0, -1),
    "seconds": (0.03, 1),
    "bytes": (8e8, 0),
    "joules": (4e3, 1),
    "loss": (3.1, 0),
    "parameters": (5e6, 0),
}
FIRST_MS = 1_760_000_000_000
FAILED_SHARE = 0.02
RUNS_A_CALL, TAGS = 500, 30


def campaigns(
    runs: int, *, metrics: int = 60, params: int = 60, blocks: int = 25
) -> Iterator[StoredRun]:
    """Cell runs of campaigns: block after block, the frameworks in random order. The same for the same arguments."""
    rng = np.random.default_rng(0)
    names = _names(
        [
            *(o.metric for o in KNOWN),
            "model/trainable_parameters",
            "model/non_trainable_parameters",
            *BATCHED,
        ],
        metrics,
    )
    settings = {"framework": "", **as_text(Settings())}
    settings |= dict.fromkeys(_names(list(settings), params)[len(settings) :], "1")
    settings = {name: settings[name] for name in list(settings)[:params]}
    for at in range(runs):
        campaign, cell = divmod(at, blocks * len(FRAMEWORKS))
        if cell == 0:
            campaign_id = rng.bytes(16).hex()
        block, order = divmod(cell, len(FRAMEWORKS))
        if order == 0:
            shuffled = rng.permutation(list(FRAMEWORKS)).tolist()
        framework = str(shuffled[order])
        place = {
            "campaign": campaign_id,
            "machine": "box0",
            "team": ("vision", "language")[campaign % 2],
        }
        yield _cell(rng, framework, block, order, FIRST_MS + at * 60_000, names, settings, place)


def _names(real: Sequence[str], count: int) -> list[str]:
    return [*real, *(f"synthetic_{i:02}" for i in range(count - len(real)))][: max(count, 0)]


def _cell(
    rng: np.random.Generator,
    framework: str,
    block: int,
    order: int,
    start_ms: int,
    metrics: Sequence[str],
    settings: dict[str, str],
    place: dict[str, str],
) -> StoredRun:
    failed = rng.random() < FAILED_SHARE
    noise = np.exp(rng.normal(0.002 * block, 0.01, len(metrics))).tolist()
    values = {name: _size(name, framework) * by for name, by in zip(metrics, noise, strict=True)}
    own = {
        **{
            "synthetic": "true",
            "kind": "cell",
            "framework": framework,
            "model": "caption_decoder",
            "dataset": "scenes",
        },
        **{
            "block": str(block),
            "order_in_block": str(order),
            "settings_hash": "5e771465",
            "environment": "e1",
            **place,
        },
        **{
            "outcome": RunOutcome.OUT_OF_MEMORY if failed else RunOutcome.OK,
            "treatment": framework,
            "commit": "0" * 12,
            "cell": f"{block}-{framework}",
        },
        **{
            "mlflow.runName": f"{framework} · block {block}",
            "mlflow.user": "nobody",
            "mlflow.source.name": "synthetic",
            "weights": "random",
        },
    }
    own |= dict.fromkeys(_names(list(own), TAGS)[len(own) :], "synthetic")
    own = {name: str(own[name]) for name in list(own)[:TAGS]}
    return StoredRun(
        rng.bytes(16).hex(),
        f"{framework} · block {block}",
        "FAILED" if failed else "FINISHED",
        start_ms,
        start_ms + 50_000,
        {name: framework if name == "framework" else text for name, text in settings.items()},
        dict(islice(values.items(), 3)) if failed else values,
        own,
    )


def _size(metric: str, framework: str) -> float:
    typical, power = next(
        (
            size
            for ending, size in SIZES.items()
            if metric.partition("_p9")[0].removesuffix("_p50").endswith(ending)
        ),
        (50.0, 0),
    )
    return typical * FRAMEWORKS[framework] ** power


def fill(database: str, runs: Iterable[StoredRun], experiment: str = EXPERIMENT) -> int:
    """Puts runs into the database of a tracking server, made if it is empty. Returns how many."""
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
