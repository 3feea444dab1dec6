"""Whether what we measure is as fast as the original: `python -m tests.models.mirror_speed tensorflow|pytorch [MODEL …]`.

On TensorFlow each Keras mirror against keras.applications' own network in the same tf.function, on PyTorch our step against
torchvision's network in a bare loop. Both take turns in one process, on the same random images; medians and their ratio.
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
# Side and number of the images. At other sides keras.applications' VGG-16 is another network: it has no adaptive pooling.
IMAGES = {"vgg16": (224, 2)}
OTHERS = (96, 8)
Work = Callable[[], object]


def of_tensorflow(model: str, framework: Framework, batch: Batch) -> dict[str, tuple[Work, Work]]:
    """phase -> (our work, keras.applications' work)."""
    import keras

    ours = framework.build(model, models.spec(model).Spec())
    original = getattr(keras.applications, APPLICATIONS[model])
    theirs = original(
        weights=None, classifier_activation=None, input_shape=batch.inputs[0].shape[1:]
    )
    return _phases(framework, ours, theirs, batch)


def of_pytorch(model: str, framework: Framework, batch: Batch) -> dict[str, tuple[Work, Work]]:
    """phase -> (our work, torchvision in a bare loop)."""
    import torch
    from torch.nn import functional
    from torchvision.models import get_model

    ours = framework.build(model, models.spec(model).Spec())
    extra = {"aux_logits": False, "init_weights": False} if model == "inception_v3" else {}
    theirs = get_model(model, weights=None, **extra)
    images = torch.from_numpy(batch.inputs[0]).permute(0, 3, 1, 2).contiguous()
    targets = torch.from_numpy(batch.targets).long()
    optimizer = framework.optimizer(ours, OptimizerConfig("adam", 1e-4))
    bare = torch.optim.Adam(theirs.parameters(), lr=1e-4, fused=True)
    placed = framework.place(batch)

    def train() -> float:
        theirs.train()
        bare.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(theirs(images), targets)
        loss.backward()
        bare.step()
        return float(loss.detach())

    def infer() -> Any:
        theirs.eval()
        with torch.inference_mode():
            return theirs(images).numpy()

    return {
        "train": (lambda: float(framework.train_step(ours, optimizer, placed)), train),
        "inference": (lambda: framework.infer(ours, placed.inputs), infer),
    }


def _phases(
    framework: Framework, ours: Any, theirs: Any, batch: Batch
) -> dict[str, tuple[Work, Work]]:
    placed = framework.place(batch)
    works: dict[str, list[Work]] = {"train": [], "inference": []}
    for network in (ours, theirs):
        optimizer = framework.optimizer(network, OptimizerConfig("adam", 1e-4))
        works["train"].append(
            lambda n=network, o=optimizer: float(framework.train_step(n, o, placed))
        )
        works["inference"].append(lambda n=network: framework.infer(n, placed.inputs))
    return {phase: (pair[0], pair[1]) for phase, pair in works.items()}


def ratio(ours: Work, theirs: Work) -> tuple[float, float, float]:
    """(our median seconds, theirs, median of the ratios of neighbours), the first calls left out."""
    for work in (ours, theirs, ours, theirs):
        work()
    pairs = []
    for number in range(ROUNDS):
        order = (ours, theirs) if number % 2 else (theirs, ours)
        seconds = {}
        for work in order:
            began = time.perf_counter()
            work()
            seconds[work] = time.perf_counter() - began
        pairs.append((seconds[ours], seconds[theirs]))
    found = np.array(pairs)
    return (
        float(np.median(found[:, 0])),
        float(np.median(found[:, 1])),
        float(np.median(found[:, 0] / found[:, 1])),
    )


def main(name: str, *wanted: str) -> None:
    framework = open_framework(name, device="cpu", threads=THREADS, precision="float32", seed=0)
    rng = np.random.default_rng(0)
    print(f"{name}, {THREADS} threads; images, ours, the original, their ratio")
    for model in wanted or APPLICATIONS:
        side, rows = IMAGES.get(model, OTHERS)
        images = rng.standard_normal((rows, side, side, 3)).astype(np.float32)
        batch = Batch(
            (images,), rng.integers(0, 1_000, rows, dtype=np.int32), np.ones(rows, np.float32)
        )
        works = (of_pytorch if name == "pytorch" else of_tensorflow)(model, framework, batch)
        for phase, (ours, theirs) in works.items():
            mine, original, times = ratio(ours, theirs)
            print(
                f"{model:16} {phase:10} {rows} of {side:3} {1e3 * mine:8.1f} ms {1e3 * original:8.1f} ms   {times:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
