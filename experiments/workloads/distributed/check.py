"""Before any minute of compute: the framework opens, and its workers together make the same steps as one alone."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from experiments.cell.contract import CellSpec, Output
from experiments.studies import distributed
from experiments.workloads import opens
from experiments.workloads.distributed import group
from experiments.workloads.distributed.group import Worker
from experiments.workloads.distributed.meeting import Meeting
from models.contract import Framework
from tracking.errors import EvenhandError

STEPS = 5
TOLERANCE = 1e-12  # float64; sums in another order differ by a few 1e-16
TRAIN_SECONDS = 120.0


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    opens.run(spec, framework, output)
    for model in spec.settings["models"]:
        for count in spec.settings["workers"]:
            if count > 1 and (found := difference(spec, model, count)) > TOLERANCE:
                raise EvenhandError(
                    f"{count} workers of {model} do not train as one does: weights differ by {found:.1e} after {STEPS} steps in "
                    f"float64, at most {TOLERANCE:g} are allowed"
                )


def difference(spec: CellSpec, model: str, workers: int, hook: str = "none", steps: int = STEPS) -> float:
    """Of the weights of so many workers from those of one that has all of their images: the largest, relative to the largest.

    Every worker is a process of its own, in float64, without dropout. Raises EvenhandError where one fails.
    """
    batch_size = distributed.rows(spec.settings["batch_size"], spec.settings["scaling"], workers) * workers
    own = {"model": model, "batch_size": batch_size, "scaling": "strong", "precision": "float64", "hook": hook}
    asked = dataclasses.replace(spec, settings={**spec.settings, **own})
    together, one = (_weights(asked, count, steps) for count in (workers, 1))
    largest = max(float(np.abs(array).max()) for array in one.values())
    return max(float(np.abs(together[name] - one[name]).max()) for name in one) / largest


def _weights(spec: CellSpec, count: int, steps: int) -> dict[str, np.ndarray]:
    path, workers = spec.path / f"weights_{count}.npz", list[Worker]()
    try:
        with Meeting(spec) as meeting:
            workers += [Worker(spec, rank, count, meeting.told, steps=steps, weights=str(path)) for rank in range(count)]
            meeting.addresses(count, workers)
        until = time.monotonic() + TRAIN_SECONDS + spec.settings["patience_seconds"]
        if not all(one.wait(max(until - time.monotonic(), 0)) for one in workers):
            raise EvenhandError(group.trouble(workers, 0) or "they did not end in time")
    except EvenhandError as error:
        raise EvenhandError(f"{count} workers could not train together: {error}") from None
    finally:
        for one in workers:
            one.kill()
    with np.load(path) as found:
        return dict(found)
