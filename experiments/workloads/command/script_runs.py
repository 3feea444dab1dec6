"""Metrics of the runs that a script has made in MLflow, found by their tag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.contract import RunStore
from experiments.workloads.command.reported import History, summarise_all
from tracking.records import SCRIPT_OF, StoredRun

NESTED = "mlflow.parentRunId"
# Of MLflow's sampler, which a script may have switched on: the cell has the sensors' values.
SYSTEM = "system/"


def collect(
    cell: str, inputs: Mapping[str, Any], store: RunStore
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the metrics of the script of a cell's run, and tags that name the script's runs.

    Of several runs with the same metric, the last that is not nested counts; with `summary =
    "best"` the best of all.
    """
    runs = sorted(
        store.tagged(SCRIPT_OF, cell),
        key=lambda run: (NESTED not in run.tags, run.start_ms),
    )
    if not runs:
        return {}, {}
    outcomes = inputs["outcomes"]
    histories: dict[str, History] = {}
    for run in runs:
        for name, last in run.metrics.items():
            if name.startswith(SYSTEM):
                continue
            history = _history(run, name, last, outcomes, store)
            is_best = outcomes.get(name, {}).get("summary") == "best"
            histories[name] = [*(histories.get(name, []) if is_best else []), *history]
    tags = {"script_runs": ",".join(run.run_id for run in reversed(runs))[:4_000]}
    return summarise_all(histories, outcomes), tags


def _history(
    run: StoredRun,
    name: str,
    last: float,
    outcomes: Mapping[str, Mapping[str, str]],
    store: RunStore,
) -> History:
    """Return all values where the outcome needs them; the last is known already."""
    if outcomes.get(name, {}).get("summary", "last") == "last":
        return [(0, last)]
    points = sorted(store.points(run.run_id, name), key=lambda point: (point.step, point.time_ms))
    return [(point.step, point.value) for point in points]
