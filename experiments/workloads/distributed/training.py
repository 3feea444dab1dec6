"""What every worker does, the first as all others: its part of the batch, step by step."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import models
from experiments.cell.measure import optimizer_config
from experiments.studies import distributed
from experiments.workloads.grid.measure import drawn_batch
from models import frameworks
from models.contract import Batch, Framework, OptimizerConfig, Weights

if TYPE_CHECKING:
    from experiments.workloads.distributed.elastic import Checkpoints


@dataclass(frozen=True)
class Place:
    """A worker's place in its group. addresses: `host:port` of each worker."""

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


def joined(framework: Framework, place: Place, settings: Mapping[str, Any]) -> Any:
    """This process as a worker of its group, once all others are there. Its network has the same initial weights as theirs."""
    group = Alone(framework)
    if place.workers > 1:
        module = frameworks.workers(framework.name)
        group = module.Workers(framework, place.rank, place.addresses, settings["patience_seconds"], settings["hook"])
    sizes = models.spec(settings["model"]).Spec(classes=settings["classes"])
    rng = np.random.default_rng(settings["seed"])
    weights = models.spec(settings["model"]).initial_weights(sizes, rng)
    group.build(settings["model"], sizes, weights, optimizer_config(settings))
    return group


def part(framework: Framework, place: Place, settings: Mapping[str, Any]) -> Batch:
    """This worker's images of the batch that all of them share, placed."""
    sizes = models.spec(settings["model"]).Spec(classes=settings["classes"])
    rows = distributed.rows(settings["batch_size"], settings["scaling"], place.workers)
    side, rng = sizes.only_side or settings["image_side"], np.random.default_rng([settings["seed"], 1])
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
    kept: Checkpoints | None = None,
) -> tuple[list[float], list[float]]:
    """Seconds and losses of so many steps: each ends when this worker has its loss. alone: without any exchange.

    kept: the checkpoints that the steps go on from, and write.
    """
    seconds, losses = kept.load(group) if kept else ([], [])
    for step in range(len(seconds) + 1, steps + 1):
        began = time.perf_counter()
        losses.append(group.step(batch, alone=alone))
        seconds.append(time.perf_counter() - began)
        on_step(step)
        if kept and step % kept.every == 0:
            kept.save(group, seconds, losses)
    return seconds, losses


def fingerprint(weights: Weights) -> float:
    """The same for the same weights, to the bit: 48 bits of a digest, which a float64 holds."""
    digest = hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).digest()
    return float(int.from_bytes(digest[:6], "big"))
