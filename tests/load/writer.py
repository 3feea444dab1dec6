"""Program that logs the records of a campaign as fast as it can, and prints its costs.

`python -m tests.load.writer ours|bare URI FOLDER NUMBER`. ours: into a journal, which a thread
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

RUNS, BATCHES, POINTS = 10, 40, 25
KEYS = ("train/loss", "train/step_seconds", "system/cpu_percent", "system/memory_bytes", "val/loss")


def points(batch: int) -> list[tuple[str, float, int, int]]:
    """Return key, value, step and time in ms of the points of a batch."""
    first = batch * POINTS
    return [
        (KEYS[i % len(KEYS)], (first + i) / 7, (first + i) // len(KEYS), 1_000_000 + first + i)
        for i in range(POINTS)
    ]


def timed(seconds: list[float], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call, which appends its duration to `seconds`."""

    def measured(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(*arguments, **named)
        finally:
            seconds.append(time.perf_counter() - start)

    return measured


def ours(uri: str, folder: Path, name: str) -> dict[str, Any]:
    from tracking.journal import Journal
    from tracking.records import Metrics, Point, RunClosed, RunOpened
    from tracking.store import Store
    from tracking.upload import Uploader

    store, records = Store(uri), Journal(folder / name)
    opened = RunOpened(name, 1_000, "load", name, {"kind": "campaign"})
    store.apply([opened], folder)
    calls: list[float] = []
    waits: list[float] = []
    store._client.log_batch = timed(calls, store._client.log_batch)
    write = timed(waits, records.append)
    uploader = Uploader(records, store, store.run_id(name) or "")
    began = time.perf_counter()
    uploader.start()
    for number in range(RUNS):
        run = f"{name}-{number}"
        records.append(RunOpened(run, 1_000, "load", run, {"kind": "cell"}))
        for batch in range(BATCHES):
            write(
                Metrics(
                    run,
                    tuple(
                        Point(key, value, step, time_ms)
                        for key, value, step, time_ms in points(batch)
                    ),
                )
            )
        records.append(RunClosed(run, 2_000, "ok"))
    written = time.perf_counter() - began
    assert uploader.finish(600), uploader.trouble
    return {"waits": waits, "calls": calls, "written": written, "took": time.perf_counter() - began}


def bare(uri: str, _: Path, name: str) -> dict[str, Any]:
    import mlflow
    from mlflow.entities import Metric

    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("load").experiment_id
    client.create_run(experiment, run_name=name)
    waits: list[float] = []
    log = timed(waits, client.log_batch)
    began = time.perf_counter()
    for number in range(RUNS):
        run = client.create_run(
            experiment, run_name=f"{name}-{number}", tags={"kind": "cell"}
        ).info.run_id
        for batch in range(BATCHES):
            log(
                run,
                metrics=[
                    Metric(key, value, time_ms, step) for key, value, step, time_ms in points(batch)
                ],
            )
        client.set_terminated(run)
    took = time.perf_counter() - began
    return {"waits": waits, "calls": waits, "written": took, "took": took}


if __name__ == "__main__":
    how, address, place, which = sys.argv[1:]
    costs = {"ours": ours, "bare": bare}[how](address, Path(place), f"{how}-{which}")
    print(json.dumps({**costs, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
