"""Costs on a CPU of what differs on a GPU: `python -m tests.models.device_costs pytorch|tensorflow`.

Seconds of a call that waits for the device; LeNet's training step with int64 labels over that with
int32 labels, in turns (TensorFlow); the share of a batch's answer that placing it takes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import models
from models.contract import OptimizerConfig
from models.frameworks import open_framework

PAIRS, CALLS, ROWS, PICTURES, SIDE = 600, 10_000, 64, 16, 64


def seconds(work: Callable[[], object], calls: int = 1) -> float:
    """Seconds of a call."""
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - began) / calls


def labels(framework: Any) -> str:
    """Return the ratio of a step's seconds, int64 over int32 labels, with its 95 % interval."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    network = framework.build("lenet", models.spec("lenet").Spec())
    optimizer = framework.optimizer(network, OptimizerConfig("adam", 1e-3))
    pixels, classes = rng.random((ROWS, 28, 28, 1), np.float32), rng.integers(0, 10, ROWS)

    def step(image: Any, label: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = network(image, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits)
            loss = tf.reduce_mean(losses)
        variables = network.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    function, images = tf.function(step), tf.constant(pixels)
    sides = [tf.constant(classes, kind) for kind in (tf.int64, tf.int32)]
    taken = np.empty((PAIRS + 20, 2))
    for pair in range(len(taken)):
        for side in (0, 1) if pair % 2 else (1, 0):
            label = sides[side]
            taken[pair, side] = seconds(lambda label=label: float(function(images, label)))
    logs = np.log(taken[20:, 0] / taken[20:, 1])
    half = 1.96 * logs.std(ddof=1) / np.sqrt(len(logs))
    low, middle, high = np.exp(logs.mean() + np.array([-half, 0, half]))
    return f"{middle:.2f} (95 % CI {low:.2f} to {high:.2f}, {PAIRS} pairs of steps)"


def main(name: str) -> None:
    framework: Any = open_framework(name, device="cpu", threads=2, precision="float32", seed=0)
    if name == "tensorflow":
        import tensorflow as tf

        print(f"sync_devices: {1e6 * seconds(tf.test.experimental.sync_devices, CALLS):.2f} µs")
    print(f"waiting as cells do: {1e6 * seconds(framework.synchronise, CALLS):.2f} µs")
    if name == "tensorflow":
        print(f"int64 over int32 labels: {labels(framework)}")
    network = framework.build("densenet201", models.spec("densenet201").Spec(classes=None))
    batch = (np.random.default_rng(0).random((PICTURES, SIDE, SIDE, 3), np.float32),)
    framework.infer(network, batch)
    whole = np.median([seconds(lambda: framework.infer(network, batch)) for _ in range(10)])
    placing = np.median([seconds(lambda: framework.place_inputs(batch)) for _ in range(100)])
    print(
        f"placing {PICTURES} pictures of {SIDE} × {SIDE}: {100 * placing / whole:.2f} % of a batch"
    )


if __name__ == "__main__":
    main(sys.argv[1])
