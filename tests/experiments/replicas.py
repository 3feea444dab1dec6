"""Five steps of two replicas in one process against one that has all images, in float64: the largest difference of weights."""

from __future__ import annotations

import dataclasses
import json
import sys

import numpy as np

from experiments.studies.distributed import Settings
from experiments.workloads.distributed import training
from experiments.workloads.distributed.training import Alone, Place
from models import frameworks


def main(name: str) -> None:
    if name == "tensorflow":
        import tensorflow as tf

        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
    framework = frameworks.open_framework(
        name, device="cpu", threads=1, precision="float64", seed=0
    )
    module, settings = (
        frameworks.workers(name),
        {**dataclasses.asdict(Settings(batch_size=12)), "model": "lenet"},
    )
    devices = [["CPU:0", "CPU:1"]] if name == "tensorflow" else []
    found = []
    for group in (Alone(framework), module.Replicas(framework, 2, *devices)):
        training.prepared(group, settings)
        framework.drop_nothing(group.network)
        batch = training.part(framework, Place(0, ["one"], 2), settings)
        for _ in range(5):
            group.step(batch)
        found.append(framework.weights(group.network))
    one, two = found
    largest = max(float(np.abs(array).max()) for array in one.values())
    print(
        json.dumps(
            [
                max(float(np.abs(two[name] - one[name]).max()) for name in one) / largest,
                group.step(batch, alone=True),
            ]
        )
    )


main(sys.argv[1])
