"""What every worker does, the first as all others: its part of the batch, step by step."""

from __future__ import annotations

import faulthandler
import hashlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import models
from experiments.cell.measure import optimizer_config
from experiments.studies import distributed
from experiments.workloads.grid.measure import drawn_batch
from models import frameworks
from models.contract import Batch, Framework, OptimizerConfig, Weights

JOIN_SECONDS = 30.0  # beyond the patience, which a framework keeps itself where it can
TOGETHER_SECONDS = 10.0
MOVED = "moved by each step"  # among weights, whose names have no spaces


@dataclass(frozen=True)
class Place:
    """A process's place in its group. addresses: `host:port` of each process."""

    rank: int
    addresses: list[str]

    @property
    def workers(self) -> int:
        return len(self.addresses)


class Alone:
    """A single worker: the framework as it is, nothing around it."""

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
    """End this process where the block takes longer, even in native code that holds Python's lock.

    TensorFlow waits an hour for a worker that has died before it joined the others.
    """
    print(f"waiting for the other workers to join, at most {seconds:g} s", file=sys.stderr)
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def joined(framework: Framework, place: Place, settings: Mapping[str, Any]) -> Any:
    """This process as a worker of its group, once all others are there. Its network has the same initial weights as theirs."""
    group: Any = Alone(framework)
    if place.workers > 1:
        module = frameworks.workers(framework.name)
        patience_seconds = settings["patience_seconds"]
        with ended_after(patience_seconds + JOIN_SECONDS):
            group = module.Workers(
                framework, place.rank, place.addresses, patience_seconds, settings["hook"]
            )
    return prepared(group, settings)


def prepared(group: Any, settings: Mapping[str, Any]) -> Any:
    """The same, with its network on the initial weights that all have."""
    sizes = models.spec(settings["model"]).Spec(classes=settings["classes"])
    rng = np.random.default_rng(settings["seed"])
    weights = models.spec(settings["model"]).initial_weights(sizes, rng)
    group.build(settings["model"], sizes, weights, optimizer_config(settings))
    return group


def part(framework: Framework, place: Place, settings: Mapping[str, Any]) -> Batch:
    """This worker's images of the batch that all of them share, placed."""
    sizes = models.spec(settings["model"]).Spec(classes=settings["classes"])
    rows = distributed.rows(settings["batch_size"], settings["scaling"], place.workers)
    side, rng = (
        sizes.only_side or settings["image_side"],
        np.random.default_rng([settings["seed"], 1]),
    )
    whole = drawn_batch(sizes, side, rows * place.workers, rng)
    own = slice(place.rank * rows, (place.rank + 1) * rows)
    return framework.place(Batch((whole.inputs[0][own],), whole.targets[own], whole.weights[own]))


def timed(
    group: Any,
    batch: Batch,
    steps: int,
    on_step: Callable[[int], object] = lambda _: None,
    *,
    alone: bool = False,
) -> tuple[list[float], list[float]]:
    """Seconds and losses of so many steps: each ends when this worker has its loss. alone: without any exchange."""
    seconds, losses = list[float](), list[float]()
    for step in range(1, steps + 1):
        began = time.perf_counter()
        losses.append(group.step(batch, alone=alone))
        seconds.append(time.perf_counter() - began)
        on_step(step)
    return seconds, losses


def timed_alone(
    group: Any,
    batch: Batch,
    steps: int,
    seconds: float,
    on_step: Callable[[int], object] = lambda _: None,
) -> list[float]:
    """Seconds of so many steps without any exchange. seconds: of one of this worker's steps.

    Between them, outside of what is timed, all wait for each other every `TOGETHER_SECONDS`: only so does a frozen one hold up
    the others, whose patience ends the cell however many steps there are.
    """
    slowest = float(group.gathered([seconds]).max())  # so that all count alike
    before_waiting, found = max(1, int(TOGETHER_SECONDS / slowest)), list[float]()
    for done in range(0, steps, before_waiting):
        own, _ = timed(
            group,
            batch,
            min(before_waiting, steps - done),
            partial(_told_after, on_step, done),
            alone=True,
        )
        found += own
        group.gathered([0.0])
    return found


def _told_after(on_step: Callable[[int], object], done: int, step: int) -> None:
    on_step(done + step)


def moves(framework: Framework, group: Any, batch: Batch, steps: int) -> list[float]:
    """So many steps: the L2 norm of what each changes of all weights."""
    found, before = [], framework.weights(group.network)
    for _ in range(steps):
        group.step(batch)
        after = framework.weights(group.network)
        found.append(
            math.sqrt(sum(float(np.square(after[name] - before[name]).sum()) for name in after))
        )
        before = after
    return found


def fingerprint(weights: Weights) -> float:
    """The same for the same weights, to the bit: 48 bits of a digest, which a float64 holds."""
    digest = hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).digest()
    return float(int.from_bytes(digest[:6], "big"))
