"""Costs of a call that waits, and of placing: `python -m tests.models.device_costs FRAMEWORK`.

On a CPU, for points that differ on a GPU: seconds of a call that waits for the device, and the
share of a batch's answer that placing it takes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import models
from models.frameworks import open_framework

CALLS, PICTURES, SIDE = 10_000, 16, 64


def seconds(work: Callable[[], object], calls: int = 1) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - began) / calls


def main(name: str) -> None:
    framework: Any = open_framework(name, device="cpu", threads=2, precision="float32", seed=0)
    if name == "tensorflow":
        import tensorflow as tf

        print(f"sync_devices: {1e6 * seconds(tf.test.experimental.sync_devices, CALLS):.2f} µs")
    print(f"waiting as cells do: {1e6 * seconds(framework.synchronise, CALLS):.2f} µs")
    network = framework.build("densenet201", models.spec("densenet201").Spec(classes=None))
    batch = (np.random.default_rng(0).random((PICTURES, SIDE, SIDE, 3), np.float32),)
    framework.infer(network, batch)
    whole = np.median([seconds(lambda: framework.infer(network, batch)) for _ in range(10)])
    placing = np.median([seconds(lambda: framework.place_inputs(batch)) for _ in range(100)])
    share = f"{100 * placing / whole:.2f} % of a batch"
    print(f"placing {PICTURES} pictures of {SIDE} × {SIDE}: {share}")


if __name__ == "__main__":
    main(*sys.argv[1:])
