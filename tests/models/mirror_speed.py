"""Speed of Keras mirrors: `python -m tests.models.mirror_speed tensorflow [MODEL …]`.

Each mirror against keras.applications' network in the same tf.function. Both take turns in one
process, on the same random images; medians and their ratio.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import models
from models.contract import Batch, Framework, OptimizerConfig
from models.frameworks import open_framework
from models.layers import images

APPLICATIONS = {
    "resnet50": "ResNet50",
    "resnet152": "ResNet152",
    "vgg16": "VGG16",
    "mobilenet_v2": "MobileNetV2",
    "efficientnet_b4": "EfficientNetB4",
    "inception_v3": "InceptionV3",
    "densenet201": "DenseNet201",
}
THREADS, ROUNDS = 2, 15
# Side and number of the images. At other sides keras.applications' VGG-16 has no adaptive pooling.
IMAGES = {"vgg16": (224, 2)}
OTHERS = (96, 8)
Work = Callable[[], object]


def phases(model: str, framework: Framework, batch: Batch) -> dict[str, list[Work]]:
    """Return our work and keras.applications' work, by phase."""
    import keras

    original: Any = getattr(keras.applications, APPLICATIONS[model])
    options = {"weights": None, "classifier_activation": None}
    theirs = original(input_shape=batch.inputs[0].shape[1:], **options)
    ours = framework.build(model, models.spec(model).Spec())
    works: dict[str, list[Work]] = {"train": [], "inference": []}
    for network in (ours, theirs):
        optimizer = framework.optimizer(network, OptimizerConfig("adam", 1e-4))
        works["train"].append(
            lambda at=network, by=optimizer: float(framework.train_step(at, by, batch))
        )
        works["inference"].append(lambda at=network: framework.infer(at, batch.inputs))
    return works


def ratio(ours: Work, theirs: Work) -> tuple[float, float, float]:
    """Return our median seconds, theirs, and the median ratio of neighbours, warmed up."""
    for work in (ours, theirs, ours, theirs):
        work()
    seconds = np.empty((ROUNDS, 2))
    for number in range(ROUNDS):
        for side in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            (ours, theirs)[side]()
            seconds[number, side] = time.perf_counter() - began
    mine, original = np.median(seconds, axis=0)
    return float(mine), float(original), float(np.median(seconds[:, 0] / seconds[:, 1]))


def main(name: str, *names: str) -> None:
    framework = open_framework(name, device="cpu", threads=THREADS, precision="float32", seed=0)
    rng = np.random.default_rng(0)
    print(f"{name}, {THREADS} threads; images, ours, the original, their ratio")
    for model in names or APPLICATIONS:
        side, rows = IMAGES.get(model, OTHERS)
        batch = framework.place(images.batch(models.spec(model).Spec(), side, rng, rows))
        for phase, works in phases(model, framework, batch).items():
            mine, original, times = ratio(*works)
            seconds = f"{1e3 * mine:8.1f} ms {1e3 * original:8.1f} ms"
            print(f"{model:16} {phase:10} {rows} of {side:3} {seconds}   {times:.3f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
