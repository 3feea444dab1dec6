"""Sizes of DenseNet-201, its expected parameter counts and its initial weights. NumPy only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from models.contract import Batch, ModelError, Weights


@dataclass(frozen=True)
class DenseNet201Spec:
    """classes: outputs of the classifier; None gives the pooled features (n, 1920) without one. The rest: the paper's table 1."""

    classes: int | None = 1000
    growth: int = 32
    blocks: tuple[int, int, int, int] = (6, 12, 48, 32)
    stem: int = 64
    bottleneck: int = 4

    def __post_init__(self) -> None:
        if self.classes is not None and self.classes < 1:
            raise ModelError(f"densenet201: classes must be at least 1 or None, not {self.classes}")


def shapes(spec: DenseNet201Spec) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight and running statistic, torchvision's names and layouts."""
    found: dict[str, tuple[int, ...]] = {}

    def convolution(name: str, outputs: int, inputs: int, size: int) -> None:
        found[f"features.{name}.weight"] = (outputs, inputs, size, size)

    def norm(name: str, channels: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            found[f"features.{name}.{part}"] = (channels,)

    channels, wide = spec.stem, spec.bottleneck * spec.growth
    convolution("conv0", channels, 3, 7)
    norm("norm0", channels)
    for block, count in enumerate(spec.blocks, 1):
        for layer in range(1, count + 1):
            path = f"denseblock{block}.denselayer{layer}"
            norm(f"{path}.norm1", channels)
            convolution(f"{path}.conv1", wide, channels, 1)
            norm(f"{path}.norm2", wide)
            convolution(f"{path}.conv2", spec.growth, wide, 3)
            channels += spec.growth
        if block < len(spec.blocks):
            norm(f"transition{block}.norm", channels)
            convolution(f"transition{block}.conv", channels // 2, channels, 1)
            channels //= 2
    norm("norm5", channels)
    if spec.classes is not None:
        found |= {"classifier.weight": (spec.classes, channels), "classifier.bias": (spec.classes,)}
    return found


def parameters(spec: DenseNet201Spec) -> tuple[int, int]:
    """Expected (trainable, non-trainable) parameters: running statistics are not trained."""
    sizes = {name: prod(shape) for name, shape in shapes(spec).items()}
    running = sum(size for name, size in sizes.items() if ".running_" in name)
    return sum(sizes.values()) - running, running


def initial_weights(spec: DenseNet201Spec, rng: np.random.Generator) -> Weights:
    """He-normal convolutions (fan in), identity norms, linear U(±1/√fan_in): 201 layers deep, activations stay of order one."""
    weights: Weights = {}
    for name, shape in shapes(spec).items():
        if len(shape) == 4:
            values = rng.standard_normal(shape) * sqrt(2 / prod(shape[1:]))
        elif name == "classifier.weight":
            values = rng.uniform(-1, 1, shape) / sqrt(shape[1])
        else:
            values = np.ones(shape) if name.endswith((".weight", ".running_var")) else np.zeros(shape)
        weights[name] = values.astype(np.float32)
    return weights


def checkpoint_name(name: str) -> str:
    """torchvision's published file still says `norm.1` where its modules say `norm1`."""
    return re.sub(r"(denselayer\d+\.(?:norm|conv))\.(\d)", r"\1\2", name)


def probe(rng: np.random.Generator) -> tuple[DenseNet201Spec, Batch]:
    """A shallow version, every kind of layer in it, and a batch of small images for the parity gate."""
    small = DenseNet201Spec(classes=5, growth=4, blocks=(2, 1, 2, 1), stem=8)
    images = rng.standard_normal((6, 64, 64, 3)).astype(np.float32)
    weights = np.array([1, 1, 1, 1, 1, 0], np.float32)
    return small, Batch((images,), rng.integers(0, 5, 6, dtype=np.int32), weights)
