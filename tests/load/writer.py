"""Program that logs the records of a campaign as fast as it can, and prints its costs.

`python -m tests.load.writer ours|bare URI FOLDER NAME`. ours: into a journal, which a thread
sends. bare: by MlflowClient, call by call.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Metric

from tracking.journal import Journal
from tracking.records import Metrics, Point, RunClosed, RunOpened
from tracking.store import Store
from tracking.upload import Uploader

RUNS, BATCHES, POINTS = 10, 40, 25
KEYS = ("train/loss", "train/step_seconds", "system/cpu_percent", "system/memory_bytes", "val/loss")
BATCH = [
    [
        (KEYS[i % len(KEYS)], i / 7, i // len(KEYS), 1_000_000 + i)
        for i in range(batch * POINTS, (batch + 1) * POINTS)
    ]
    for batch in range(BATCHES)
]


def timed(seconds: list[float], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call, which appends its duration to `seconds`."""

    def measured(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        result = call(*arguments, **named)
        seconds.append(time.perf_counter() - start)
        return result

    return measured


def ours(uri: str, folder: Path, name: str) -> dict[str, Any]:
    store, records, waits, calls = Store(uri), Journal(folder / name), list[float](), list[float]()
    store.apply([RunOpened(name, 1_000, "load", name, {"kind": "campaign"})], folder)
    store._client.log_batch = timed(calls, store._client.log_batch)
    write = timed(waits, records.append)
    uploader = Uploader(records, store, store.run_id(name) or "")
    began = time.perf_counter()
    uploader.start()
    for run in (f"{name}-{number}" for number in range(RUNS)):
        records.append(RunOpened(run, 1_000, "load", run, {"kind": "cell"}))
        for batch in BATCH:
            write(Metrics(run, tuple(Point(*point) for point in batch)))
        records.append(RunClosed(run, 2_000, "ok"))
    written = time.perf_counter() - began
    assert uploader.finish(600), uploader.trouble
    return {"waits": waits, "calls": calls, "written": written, "took": time.perf_counter() - began}


def bare(uri: str, _: Path, name: str) -> dict[str, Any]:
    client, waits = mlflow.MlflowClient(uri), list[float]()
    experiment = client.get_experiment_by_name("load").experiment_id
    client.create_run(experiment, run_name=name)
    log = timed(waits, client.log_batch)
    began = time.perf_counter()
    for number in range(RUNS):
        tags, run_name = {"kind": "cell"}, f"{name}-{number}"
        run = client.create_run(experiment, run_name=run_name, tags=tags).info.run_id
        for batch in BATCH:
            log(run, metrics=[Metric(key, value, ms, step) for key, value, step, ms in batch])
        client.set_terminated(run)
    took = time.perf_counter() - began
    return {"waits": waits, "calls": waits, "written": took, "took": took}


if __name__ == "__main__":
    how, address, place, name = sys.argv[1:]
    costs = {"ours": ours, "bare": bare}[how](address, Path(place), name)
    print(json.dumps({**costs, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
