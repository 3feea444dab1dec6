"""Proof before any cell that several workers train as one with all of their images.

It is made in float64, and with what a hook may lose.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.contract import CellSpec, Output
from experiments.studies import distributed
from experiments.studies.distributed import Settings
from experiments.workloads.distributed import group, training
from experiments.workloads.distributed.prepare import PROOFS
from models.contract import Array, Framework, Weights
from tracking.errors import ErrorCode, EvenhandError
from tracking.records import Tags

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
    differences over that of the change that one worker's steps have made.
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


def run(spec: CellSpec[Settings], _: Framework, output: Output) -> None:
    """Record the proofs of all groups; raise EvenhandError for one beyond its limit."""
    groups = distributed.groups(spec.settings.workers, spec.settings.compression, spec.framework)
    proofs = [
        proven(run_proof(spec, model, level, count, hook))
        for model in spec.settings.models
        for level, (count, hook) in groups.items()
        if count > 1
    ]
    texts = json.dumps([dataclasses.asdict(proof) for proof in proofs])
    output.record(Tags(spec.run, {PROOFS: texts}))


def proven(proof: Proof) -> Proof:
    """Return the proof, or raise EvenhandError if the weights differ by more than the limit."""
    if proof.error > proof.limit:
        raise EvenhandError(
            ErrorCode.NOT_EQUAL,
            f"{proof.workers} workers of {proof.model} with compression={proof.hook} do not train "
            f"as one does: weights differ by {proof.error:.1e} of the {proof.measure} after "
            f"{proof.steps} steps in float64, at most {proof.limit:.1e} are allowed",
        )
    return proof


def run_proof(spec: CellSpec[Settings], model: str, level: str, workers: int, hook: str) -> Proof:
    """Compare several workers with one, each in a separate process.

    Raises:
        EvenhandError: If a worker fails.
    """
    scaling = spec.settings.scaling
    changes: dict[str, Any] = {
        "model": model,
        "batch_size": distributed.rows(spec.settings.batch_size, scaling, workers) * workers,
        "scaling": "strong",
        "precision": "float64",
        "hook": hook,
    }
    if hook != "none":
        changes["learning_rate"] = RATE
    spec = dataclasses.replace(spec, settings=dataclasses.replace(spec.settings, **changes))
    together, single = _train(spec, workers), _train(spec, 1)
    differences = [together[name] - array for name, array in single.items()]
    if hook == "none":
        measure, limit = "largest weight", EXACT
        largest = max(float(np.abs(array).max()) for array in single.values())
        error = max(float(np.abs(array).max()) for array in differences) / largest
    else:
        initial = training.initial_weights(spec.settings)
        way = norm(single[name] - array for name, array in initial.items())
        size = sum(array.size for array in single.values())
        measure, limit = "way of the weights", most_lost(hook, workers, size, way)
        error = norm(differences) / way
    return Proof(spec.framework, model, level, workers, hook, STEPS, measure, error, limit)


def norm(arrays: Iterable[Array]) -> float:
    """Return the L2 norm of all numbers of the arrays."""
    return math.sqrt(sum(float(np.square(array).sum()) for array in arrays))


def most_lost(hook: str, workers: int, size: int, way: float) -> float:
    """Return the largest change of the weights by a hook's arithmetic, as a share of their way.

    Args:
        hook: `fp16` or `powersgd`.
        workers: Number of workers.
        size: Number of weights.
        way: L2 norm of the change of one worker's weights, whose steps are nearly parallel.

    fp16: each of k gradients is rounded, divided and added up, at most k + 1 roundings of each
    number. k orthogonal gradients are √k times as long as their mean. Numbers too small for fp16
    are off by a fixed amount in each of n weights.

    PowerSGD leaves something out of every step and adds it to the next; the last step adds all.
    Nothing is lost, but the gradients in between are taken at other weights.
    """
    if hook == "powersgd":
        return DRIFT
    too_small = UNDERFLOW * RATE * STEPS * math.sqrt(size) / way
    return (workers + 1) * (ROUNDING * math.sqrt(workers) + too_small)


def _train(spec: CellSpec[Settings], workers: int) -> Weights:
    path = spec.path / f"weights_{workers}.npz"
    task = {"steps": STEPS, "weights": str(path)}
    patience_seconds = spec.settings.patience_seconds
    try:
        with (
            group.reserved(spec, workers) as rendezvous,
            group.started(spec, rendezvous, range(workers), **task) as processes,
        ):
            group.meet(processes, group.START_SECONDS + patience_seconds)
            group.wait_until_ended(processes, TRAIN_SECONDS + patience_seconds)
    except EvenhandError as error:
        raise EvenhandError(
            error.code, f"{workers} workers could not train together: {error}"
        ) from None
    with np.load(path) as file:
        return dict(file)
