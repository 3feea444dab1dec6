"""Proof that several workers train as one with all of their images.

It is made in float64, and with what a hook may lose.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from experiments.contract import CellSpec
from experiments.studies import distributed
from experiments.workloads.distributed import group
from experiments.workloads.distributed.training import MOVED
from models.contract import Array, Weights
from tracking.errors import EvenhandError

STEPS = 5
EXACT = 1e-12  # float64; sums in another order differ by a few 1e-16
# Learning rate with a lossy hook: its losses then hardly change the gradients of later steps.
RATE = 1e-6
ROUNDING = 2.0**-11  # relative, of a number in fp16: half a unit in the last of 11 binary places
# Absolute, of a number below fp16's normal range: half the distance between the smallest.
UNDERFLOW = 2.0**-25
# All steps left out until the last, in a curvature of 200, in which SGD with 0.01 diverges.
DRIFT = STEPS * RATE * 200
TRAIN_SECONDS = 120.0


@dataclass(frozen=True)
class Proof:
    """Difference of the weights after `steps`, as a share of `measure`, and its limit.

    The largest weight: the largest difference over it. The way of the weights: the L2 norm of all
    differences over the sum of the L2 norms of one worker's steps.
    """

    framework: str
    model: str
    level: str
    workers: int
    hook: str
    steps: int
    measure: str
    error: float
    limit: float


@dataclass(frozen=True)
class Trained:
    """Weights after the steps, and the L2 norm of each step of a single worker, (steps,)."""

    weights: Weights
    moved: Array


def run_proof(spec: CellSpec, model: str, level: str, workers: int, hook: str) -> Proof:
    """Compare several workers with one, each in a separate process.

    Raises:
        EvenhandError: If a worker fails.
    """
    scaling = spec.settings["scaling"]
    settings = {
        "model": model,
        "batch_size": distributed.rows(spec.settings["batch_size"], scaling, workers) * workers,
        "scaling": "strong",
        "precision": "float64",
        "hook": hook,
    }
    if hook != "none":
        settings["learning_rate"] = RATE
    spec = dataclasses.replace(spec, settings={**spec.settings, **settings})
    together, single = _train(spec, workers), _train(spec, 1)
    differences = [together.weights[name] - array for name, array in single.weights.items()]
    if hook == "none":
        measure, limit = "largest weight", EXACT
        largest = max(float(np.abs(array).max()) for array in single.weights.values())
        error = max(float(np.abs(array).max()) for array in differences) / largest
    else:
        measure, limit = "way of the weights", most_lost(hook, workers, single)
        squares = sum(float(np.square(array).sum()) for array in differences)
        error = math.sqrt(squares) / float(single.moved.sum())
    return Proof(spec.framework, model, level, workers, hook, STEPS, measure, error, limit)


def most_lost(hook: str, workers: int, single: Trained) -> float:
    """Return the largest change of the weights by a hook's arithmetic, as a share of their way.

    fp16: each of k gradients is rounded, divided and added up, at most k + 1 roundings of each
    number. k orthogonal gradients are √k times as long as their mean. Numbers too small for fp16
    are off by a fixed amount in each of n weights.

    PowerSGD leaves something out of every step and adds it to the next; the last step adds all.
    Nothing is lost, but the gradients in between are taken at other weights.
    """
    if hook == "powersgd":
        return DRIFT
    size = sum(array.size for array in single.weights.values())
    way = float(single.moved.sum())
    too_small = UNDERFLOW * RATE * len(single.moved) * math.sqrt(size) / way
    return (workers + 1) * (ROUNDING * math.sqrt(workers) + too_small)


def _train(spec: CellSpec, workers: int) -> Trained:
    path = spec.path / f"weights_{workers}.npz"
    task = {"steps": STEPS, "weights": str(path)}
    patience_seconds = spec.settings["patience_seconds"]
    try:
        with (
            group.reserved(spec, workers) as rendezvous,
            group.started(spec, rendezvous, range(workers), **task) as processes,
        ):
            group.meet(processes, group.START_SECONDS + patience_seconds)
            group.wait_until_ended(processes, TRAIN_SECONDS + patience_seconds)
    except EvenhandError as error:
        raise EvenhandError(f"{workers} workers could not train together: {error}") from None
    with np.load(path) as file:
        weights = dict(file)
    return Trained(weights, weights.pop(MOVED))
