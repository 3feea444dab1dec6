"""Training of a worker on its part of the batch, the same for the first and all others."""

from __future__ import annotations

import faulthandler
import hashlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import models
from experiments.cell import peak_memory
from experiments.cell.measure import optimizer_config
from experiments.studies import distributed
from experiments.workloads.grid.measure import drawn_batch
from models import frameworks
from models.contract import Batch, Framework, OptimizerConfig, Weights

JOIN_SECONDS = 30.0  # in addition to the patience, which some frameworks observe themselves
TOGETHER_SECONDS = 10.0
MOVED = "moved by each step"  # among weights, whose names have no spaces


@dataclass(frozen=True)
class Place:
    """Rank of a process in its group, and `host:port` of each process."""

    rank: int
    addresses: list[str]

    @property
    def workers(self) -> int:
        return len(self.addresses)


class Alone:
    """Single worker: the framework as it is."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    def build(self, model: str, sizes: Any, weights: Weights, config: OptimizerConfig) -> None:
        self.network = self._framework.build(model, sizes)
        self._framework.load_weights(self.network, weights)
        self.optimizer = self._framework.optimizer(self.network, config)

    def step(self, batch: Batch, *, alone: bool = False) -> float:  # noqa: ARG002
        return float(self._framework.train_step(self.network, self.optimizer, batch))

    def gathered(self, values: Any) -> Any:
        return np.asarray(values)[None]

    def close(self) -> None:
        pass


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer, even in native code that holds Python's lock.

    TensorFlow waits for an hour for a worker that has died before it joined the others.
    """
    print(f"waiting for the other workers to join, at most {seconds:g} s", file=sys.stderr)
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def joined(framework: Framework, place: Place, settings: Mapping[str, Any]) -> Any:
    """Return this process as a worker, once all have joined, with the same initial weights."""
    worker: Any = Alone(framework)
    if place.workers > 1:
        module = frameworks.load(framework.name, "workers")
        patience_seconds = settings["patience_seconds"]
        with ended_after(patience_seconds + JOIN_SECONDS):
            worker = module.Workers(
                framework, place.rank, place.addresses, patience_seconds, settings["hook"]
            )
    definition = models.spec(settings["model"])
    sizes = definition.Spec(classes=settings["classes"])
    weights = definition.initial_weights(sizes, np.random.default_rng(settings["seed"]))
    worker.build(settings["model"], sizes, weights, optimizer_config(settings))
    return worker


def part(framework: Framework, place: Place, settings: Mapping[str, Any]) -> Batch:
    """Return this worker's images of the shared batch, on the device."""
    sizes = models.spec(settings["model"]).Spec(classes=settings["classes"])
    rows = distributed.rows(settings["batch_size"], settings["scaling"], place.workers)
    side = sizes.only_side or settings["image_side"]
    rng = np.random.default_rng([settings["seed"], 1])
    whole = drawn_batch(sizes, side, rows * place.workers, rng)
    local = slice(place.rank * rows, (place.rank + 1) * rows)
    images, targets = whole.inputs[0][local], whole.targets[local]
    return framework.place(Batch((images,), targets, whole.weights[local]))


def timed(
    worker: Any,
    batch: Batch,
    steps: int,
    on_step: Callable[[int], object] = lambda _: None,
    *,
    alone: bool = False,
    first: int = 1,
) -> tuple[list[float], list[float]]:
    """Return seconds and losses of steps, each of which ends when this worker has its loss.

    Args:
        worker: Worker of the group.
        batch: Its part of the batch.
        steps: Number of steps.
        on_step: Gets the number of each step.
        alone: Whether nothing is exchanged.
        first: Number of the first step.
    """
    seconds, losses = list[float](), list[float]()
    for step in range(first, first + steps):
        began = time.perf_counter()
        losses.append(worker.step(batch, is_local=alone))
        seconds.append(time.perf_counter() - began)
        on_step(step)
    return seconds, losses


def timed_alone(
    worker: Any,
    batch: Batch,
    steps: int,
    step_seconds: float,
    on_step: Callable[[int], object] = lambda _: None,
) -> list[float]:
    """Return seconds of steps without any exchange.

    Between them, off the clock, all workers wait for each other every `TOGETHER_SECONDS`. So a
    frozen one holds up the others, whose patience ends the cell however many steps there are.
    """
    slowest = float(worker.gathered([step_seconds]).max())  # the same count for all
    together, seconds = max(1, int(TOGETHER_SECONDS / slowest)), list[float]()
    for done in range(0, steps, together):
        count = min(together, steps - done)
        part_seconds, _ = timed(worker, batch, count, on_step, alone=True, first=done + 1)
        seconds += part_seconds
        worker.gathered([0.0])
    return seconds


def gather_results(
    worker: Any,
    weights: float,
    losses: Sequence[float],
    seconds: Sequence[float],
    alone: Sequence[float],
) -> Any:
    """Return a row for each worker: weights, memory, mean loss, seconds, seconds alone."""
    row = [weights, peak_memory.rss_bytes(), np.mean(losses), *seconds, *alone]
    return worker.gathered(row)


def moves(framework: Framework, worker: Any, batch: Batch, steps: int) -> list[float]:
    """Train, and return the L2 norm of each step's change of all weights."""
    norms, before = [], framework.weights(worker.network)
    for _ in range(steps):
        worker.step(batch)
        after = framework.weights(worker.network)
        squares = sum(float(np.square(after[name] - before[name]).sum()) for name in after)
        norms.append(math.sqrt(squares))
        before = after
    return norms


def fingerprint(weights: Weights) -> float:
    """Return 48 bits of a digest of the weights, which a float64 holds."""
    digest = hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).digest()
    return float(int.from_bytes(digest[:6], "big"))
