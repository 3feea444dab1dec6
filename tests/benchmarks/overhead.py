"""Cost of this harness over a framework's plain loop, step by step in one process.

`python -m tests.experiments.harness_costs FRAMEWORK MODEL ROWS PAIRS FIRST` trains two networks
with the same weights on the same batch, one in each loop, in turns after every step and request:
other programs slow both. FIRST, `harness` or `plain`, is built first, as the place in memory
matters. Prints `{"training": ratio, "requests": ratio}`: medians over pairs, without the first
quarter of them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import models
from experiments.cell.timing import Stopwatch
from experiments.studies.overhead import Settings, side_of
from experiments.workloads.grid.measure import drawn_batch
from models import frameworks
from models.contract import Batch, OptimizerConfig

RATE, CLASSES = 1e-6, 10


def measure(name: str, model: str, rows: int, pairs: int, first: str) -> dict[str, float]:
    framework = frameworks.open_framework(
        name, device="cpu", threads=1, precision="float32", seed=0
    )
    module, rng = models.spec(model), np.random.default_rng(0)
    sizes = module.Spec(classes=CLASSES)
    weights = module.initial_weights(sizes, rng)
    batch = drawn_batch(sizes, side_of(model, Settings()), rows, rng)

    def build_network() -> Any:
        network = framework.build(model, sizes)
        framework.load_weights(network, weights)
        return network

    def build_plain_loop() -> Any:
        network = models.load(model, framework.architecture).build(sizes)
        return frameworks.load(name, "plain_loop").Plain(
            network, weights, batch.inputs[0], batch.targets, framework.device
        )

    if first == "harness":
        network, plain = build_network(), build_plain_loop()
    else:
        plain, network = build_plain_loop(), build_network()
    placed, request = framework.place(batch), plain.requests()
    requests = [
        (_seconds(lambda: framework.infer(network, placed.inputs)), _seconds(request))
        for _ in range(pairs)
    ]
    steps = _train_in_turns(framework, network, placed, plain.steps(RATE), pairs)
    return {"training": _ratio(steps), "requests": _ratio(requests)}


def _train_in_turns(
    framework: Any, network: Any, batch: Batch, plain: Callable[[], float], pairs: int
) -> list[tuple[float, float]]:
    """Return the seconds of steps of both, the plain one where the harness waits for a batch."""
    plain_seconds: list[float] = []

    def batches() -> Iterator[Batch]:
        for _ in range(pairs):
            yield batch
            plain_seconds.append(_seconds(plain))

    watch = Stopwatch(lambda *_: None)
    optimizer = framework.optimizer(network, OptimizerConfig("adam-stock", RATE))
    framework.train_epoch(network, optimizer, batches(), watch)
    return list(zip(watch.seconds, plain_seconds, strict=True))


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _ratio(pairs: list[tuple[float, float]]) -> float:
    """Return the median ratio of neighbouring steps; a ratio of medians would mix surroundings."""
    counted = np.array(pairs[len(pairs) // 4 :])
    return float(np.exp(np.median(np.log(counted[:, 0] / counted[:, 1]))))


if __name__ == "__main__":
    name, model, rows, pairs, first = sys.argv[1:]
    print(json.dumps(measure(name, model, int(rows), int(pairs), first)))
