"""Whether several workers train as one does that has all of their images: in float64, and within what a hook may lose."""

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
RATE = 1e-6  # the learning rate where a hook loses something: what it loses hardly changes the gradients of later steps
ROUNDING = 2.0**-11  # of a number in fp16, relative: half a unit in the last of 11 binary places
UNDERFLOW = (
    2.0**-25
)  # of a number below fp16's normal range, absolute: half the distance between the smallest
DRIFT = (
    STEPS * RATE * 200
)  # all steps left out until the last, in a curvature of 200, in which SGD with 0.01 diverges
TRAIN_SECONDS = 120.0
OF_LARGEST, OF_WAY = "largest weight", "way of the weights"


@dataclass(frozen=True)
class Proof:
    """error: by how much the weights differ after so many steps, a share of `measure`; limit: by how much they may.

    The largest weight: the largest difference over it. The way of the weights: the L2 norm of all differences over the sum of
    the L2 norms of one worker's steps.
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

    @property
    def holds(self) -> bool:
        return self.error <= self.limit


@dataclass(frozen=True)
class Trained:
    """The weights after the steps. moved: the L2 norm of what each step changed of them, (steps,); only one worker has it."""

    weights: Weights
    moved: Array


def of(spec: CellSpec, model: str, level: str, workers: int, hook: str) -> Proof:
    """So many workers against one, each of them a process of its own. Raises EvenhandError where one fails."""
    together, one = (_trained(_asked(spec, model, workers, hook), count) for count in (workers, 1))
    measure = OF_LARGEST if hook == "none" else OF_WAY
    error, limit = _largest(together, one), EXACT
    if measure == OF_WAY:
        error, limit = _of_way(together, one), most_lost(hook, workers, one)
    return Proof(spec.framework, model, level, workers, hook, STEPS, measure, error, limit)


def most_lost(hook: str, workers: int, one: Trained) -> float:
    """What the hook may change of the weights by its own arithmetic, as a share of their way.

    fp16: each of k gradients is rounded, divided and added up, at most k + 1 roundings of each number. k gradients at right
    angles are √k times as long as their mean. What is too small for fp16 is off by a fixed amount in each of n weights.
    PowerSGD leaves something out of every step, remembers it and adds it to the next; the last step adds all. Nothing is
    lost, but the gradients in between are taken at other weights.
    """
    if hook == "powersgd":
        return DRIFT
    size = sum(array.size for array in one.weights.values())
    too_small = UNDERFLOW * RATE * len(one.moved) * math.sqrt(size) / float(one.moved.sum())
    return (workers + 1) * (ROUNDING * math.sqrt(workers) + too_small)


def _largest(together: Trained, one: Trained) -> float:
    largest = max(float(np.abs(array).max()) for array in one.weights.values())
    return (
        max(
            float(np.abs(together.weights[name] - array).max())
            for name, array in one.weights.items()
        )
        / largest
    )


def _of_way(together: Trained, one: Trained) -> float:
    squares = sum(
        float(np.square(together.weights[name] - array).sum())
        for name, array in one.weights.items()
    )
    return math.sqrt(squares) / float(one.moved.sum())


def _asked(spec: CellSpec, model: str, workers: int, hook: str) -> CellSpec:
    """The cell of all of their images, in float64 and without dropout."""
    batch_size = (
        distributed.rows(spec.settings["batch_size"], spec.settings["scaling"], workers) * workers
    )
    own = {
        "model": model,
        "batch_size": batch_size,
        "scaling": "strong",
        "precision": "float64",
        "hook": hook,
    }
    if hook != "none":
        own["learning_rate"] = RATE
    return dataclasses.replace(spec, settings={**spec.settings, **own})


def _trained(spec: CellSpec, count: int) -> Trained:
    path = spec.path / f"weights_{count}.npz"
    told = {"steps": STEPS, "weights": str(path)}
    patience_seconds = spec.settings["patience_seconds"]
    try:
        with (
            group.reserved(spec, count) as meeting,
            group.started(spec, meeting, range(count), **told) as workers,
        ):
            group.meet(workers, group.START_SECONDS + patience_seconds)
            group.wait_until_ended(workers, TRAIN_SECONDS + patience_seconds)
    except EvenhandError as error:
        raise EvenhandError(f"{count} workers could not train together: {error}") from None
    with np.load(path) as kept:
        found = dict(kept)
    return Trained(found, found.pop(MOVED))
