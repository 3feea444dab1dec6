"""What this harness costs beside a framework's own plain loop, step by step in one process.

`python -m tests.experiments.harness_costs FRAMEWORK MODEL ROWS PAIRS FIRST`: two networks with the same weights and the same
batch, one in each loop, which take turns after every step and every request: what the machine does meanwhile falls on both.
Where their memory lies does not, so FIRST, `ours` or `plain`, says which of the two is built first. Prints
`{"training": ratio, "requests": ratio}`: medians over pairs, without the first quarter of them.
"""

from __future__ import annotations

import json
import math
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


def measured(name: str, model: str, rows: int, pairs: int, first: str) -> dict[str, float]:
    framework = frameworks.open_framework(
        name, device="cpu", threads=1, precision="float32", seed=0
    )
    module, rng = models.spec(model), np.random.default_rng(0)
    sizes = module.Spec(classes=CLASSES)
    weights = module.initial_weights(sizes, rng)
    batch = drawn_batch(sizes, side_of(model, Settings()), rows, rng)

    def ours() -> Any:
        network = framework.build(model, sizes)
        framework.load_weights(network, weights)
        return network

    def plainly() -> Any:
        other = models.load(model, framework.architecture).build(sizes)
        return frameworks.load(name, "plain_loop").Plain(
            other, weights, batch.inputs[0], batch.targets, framework.device
        )

    makers = {"ours": ours, "plain": plainly}
    made = {one: makers[one]() for one in sorted(makers, key=lambda one: one != first)}
    network, plain, placed = made["ours"], made["plain"], framework.place(batch)
    requests = _requests(lambda: framework.infer(network, placed.inputs), plain.requests(), pairs)
    return {
        "training": _training(framework, network, placed, plain.steps(RATE), pairs),
        "requests": requests,
    }


def _requests(ours: Callable[[], Any], plain: Callable[[], Any], pairs: int) -> float:
    return _ratio([(_seconds(ours), _seconds(plain)) for _ in range(pairs)])


def _training(
    framework: Any, network: Any, batch: Batch, plain: Callable[[], float], pairs: int
) -> float:
    """The plain loop's steps are made where this harness waits for its next batch, outside of its clock."""
    beside: list[float] = []

    def batches() -> Iterator[Batch]:
        for _ in range(pairs):
            yield batch
            beside.append(_seconds(plain))

    watch = Stopwatch(lambda *_: None)
    framework.train_epoch(
        network, framework.optimizer(network, OptimizerConfig("adam-stock", RATE)), batches(), watch
    )
    return _ratio(list(zip(watch.seconds, beside, strict=True)))


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _ratio(pairs: list[tuple[float, float]]) -> float:
    """The median of the ratios of steps side by side, which had the same surroundings; a ratio of medians would mix them."""
    counted = pairs[len(pairs) // 4 :]
    return math.exp(float(np.median([math.log(ours / plain) for ours, plain in counted])))


if __name__ == "__main__":
    print(
        json.dumps(
            measured(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
        )
    )
