"""Training of a worker on its part of the batch, the same for the first and all others."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import models
from experiments.cell.measure import optimizer_config
from experiments.studies import distributed
from experiments.studies.distributed import Settings
from models import frameworks, weights
from models.contract import Batch, Framework, OptimizerConfig, Weights
from models.layers import images

JOIN_SECONDS = 30.0  # in addition to the patience, which some frameworks observe themselves
TOGETHER_SECONDS = 10.0


class SingleWorker:
    """Single worker: the framework as it is."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    def build(self, model: str, sizes: Any, weights: Weights, config: OptimizerConfig) -> None:
        self.network = self._framework.build(model, sizes)
        self._framework.load_weights(self.network, weights)
        self.optimizer = self._framework.optimizer(self.network, config)

    def step(self, batch: Batch, *, is_local: bool = False) -> float:  # noqa: ARG002
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


def joined(framework: Framework, rank: int, addresses: list[str], settings: Settings) -> Any:
    """Return this process as a worker, once all have joined, with the same initial weights.

    Args:
        framework: Framework of the process.
        rank: Rank of the process in its group.
        addresses: `host:port` of each process.
        settings: Settings of the cell.
    """
    worker: Any = SingleWorker(framework)
    if len(addresses) > 1:
        module = frameworks.load(framework.name, "workers")
        patience_seconds = settings.patience_seconds
        with ended_after(patience_seconds + JOIN_SECONDS):
            worker = module.Workers(framework, rank, addresses, patience_seconds, settings.hook)
    sizes = models.spec(settings.model).Spec(classes=settings.classes)
    worker.build(settings.model, sizes, initial_weights(settings), optimizer_config(settings))
    return worker


def initial_weights(settings: Settings) -> Weights:
    """Return the weights with which every worker begins."""
    module = models.spec(settings.model)
    sizes = module.Spec(classes=settings.classes)
    initial: Weights = module.initial_weights(sizes, np.random.default_rng(settings.seed))
    return initial


def part(framework: Framework, rank: int, workers: int, settings: Settings) -> Batch:
    """Return this worker's images of the shared batch, on the device."""
    sizes = models.spec(settings.model).Spec(classes=settings.classes)
    rows = distributed.rows(settings.batch_size, settings.scaling, workers)
    side = sizes.only_side or settings.image_side
    rng = np.random.default_rng([settings.seed, 1])
    whole = images.batch(sizes, side, rng, rows * workers)
    local = slice(rank * rows, (rank + 1) * rows)
    inputs, targets = whole.inputs[0][local], whole.targets[local]
    return framework.place(Batch((inputs,), targets, whole.weights[local]))


def time_steps(
    worker: Any,
    batch: Batch,
    steps: int,
    on_step: Callable[[int], object] = lambda _: None,
    *,
    meet_every: int = 0,
) -> tuple[list[float], list[float]]:
    """Return seconds and losses of steps, each of which ends when this worker has its loss.

    Args:
        worker: Worker of the group.
        batch: Its part of the batch.
        steps: Number of steps.
        on_step: Gets the number of each step.
        meet_every: 0: gradients are exchanged. Otherwise nothing is exchanged, and after so many
            steps, off the clock, all workers wait for each other.
    """
    seconds, losses = list[float](), list[float]()
    for step in range(1, steps + 1):
        began = time.perf_counter()
        losses.append(worker.step(batch, is_local=meet_every > 0))
        seconds.append(time.perf_counter() - began)
        on_step(step)
        if meet_every and step % meet_every == 0:
            worker.gathered([0.0])
    return seconds, losses


def time_without_exchange(
    worker: Any,
    batch: Batch,
    steps: int,
    step_seconds: float,
    on_step: Callable[[int], object] = lambda _: None,
) -> list[float]:
    """Return seconds of steps without any exchange.

    All workers wait for each other every `TOGETHER_SECONDS`. So a frozen one holds up the others,
    whose patience ends the cell however many steps there are.
    """
    slowest = float(worker.gathered([step_seconds]).max())  # the same count for all
    meet_every = max(1, int(TOGETHER_SECONDS / slowest))
    return time_steps(worker, batch, steps, on_step, meet_every=meet_every)[0]


def digest(values: Weights) -> float:
    """Return 48 bits of a digest of the weights, which a float64 holds."""
    return float(int(weights.digest(values)[:12], 16))
