"""Sizes, counts, initial weights and probes of networks that classify images. NumPy only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod, sqrt
from typing import ClassVar

import numpy as np

from models.contract import Batch, ModelError, Weights

Size = int | tuple[int, int]


class Shapes(dict[str, tuple[int, ...]]):
    """Name -> shape of every weight and running statistic, in PyTorch's names and layouts, filled layer by layer."""

    def convolution(
        self, path: str, outputs: int, inputs: int, size: Size, *, bias: bool = False
    ) -> None:
        self[f"{path}.weight"] = (outputs, inputs, *pair(size))
        if bias:
            self[f"{path}.bias"] = (outputs,)

    def norm(self, path: str, channels: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            self[f"{path}.{part}"] = (channels,)

    def linear(self, path: str, outputs: int, inputs: int) -> None:
        self[f"{path}.weight"] = (outputs, inputs)
        self[f"{path}.bias"] = (outputs,)

    def layer_norm(self, path: str, width: int) -> None:
        self[f"{path}.weight"] = self[f"{path}.bias"] = (width,)

    def scale(self, path: str, width: int) -> None:
        self[f"{path}.weight"] = (width,)

    def embedding(self, path: str, rows: int, width: int) -> None:
        """Of tokens or positions."""
        self[f"{path}.weight"] = (rows, width)

    def attention(self, path: str, width: int) -> None:
        for part in ("query", "key", "value", "output"):
            self.linear(f"{path}.{part}", width, width)

    def lstm(self, path: str, width: int, inputs: int, *, bidirectional: bool = False) -> None:
        """One bias vector a gate."""
        for direction in ("", "_reverse") if bidirectional else ("",):
            self[f"{path}.weight_ih_l0{direction}"] = (4 * width, inputs)
            self[f"{path}.weight_hh_l0{direction}"] = (4 * width, width)
            self[f"{path}.bias_ih_l0{direction}"] = (4 * width,)

    @property
    def parameters(self) -> tuple[int, int]:
        """(trainable, non-trainable)."""
        sizes = {name: prod(shape) for name, shape in self.items()}
        running = sum(size for name, size in sizes.items() if ".running_" in name)
        return sum(sizes.values()) - running, running


def pair(size: Size) -> tuple[int, int]:
    """(height, width) of a size that may be given once for both."""
    return (size, size) if isinstance(size, int) else size


@dataclass(frozen=True)
class ImageSpec(ABC):
    """A network from images (n, height, width, channels) to logits (n, classes).

    least_side: the smallest height and width, in pixels, that it takes; only_side: the one that it takes.
    """

    classes: int = 1000

    least_side: ClassVar[int] = 1
    only_side: ClassVar[int | None] = None
    channels: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if self.classes < 1:
            raise ModelError(f"classes must be at least 1, not {self.classes}")

    def refuses(self, side: int) -> str:
        """Why square images of this side do not go through; empty where they do."""
        if self.only_side and side != self.only_side:
            return f"takes images of {self.only_side} × {self.only_side} alone"
        return (
            f"needs images of at least {self.least_side} × {self.least_side}"
            if side < self.least_side
            else ""
        )

    def least_rows(self, side: int) -> int:
        """Images that one training step needs: BatchNorm wants two values a channel, and the last may see one pixel an image."""
        return 1 if self.last_norm(side) > 1 else 2

    def last_norm(self, side: int) -> int:
        """Pixels a side that the last BatchNorm sees of an image."""
        return -(-side // 32)

    @abstractmethod
    def shapes(self) -> Shapes:
        """Shape of every array of the network, by name."""


def shapes(spec: ImageSpec) -> Shapes:
    """Name -> shape of every weight and running statistic, in PyTorch's names and layouts."""
    return spec.shapes()


def initial_weights(spec: ImageSpec, rng: np.random.Generator) -> Weights:
    """He-normal convolutions (fan in), identity norms, linear U(±1/√fan_in): however deep, activations stay of order one."""
    weights: Weights = {}
    for name, shape in spec.shapes().items():
        if len(shape) == 4:
            values = rng.standard_normal(shape) * sqrt(2 / prod(shape[1:]))
        elif len(shape) == 2:
            values = rng.uniform(-1, 1, shape) / sqrt(shape[1])
        else:
            values = (
                np.ones(shape) if name.endswith((".weight", ".running_var")) else np.zeros(shape)
            )
        weights[name] = values.astype(np.float32)
    return weights


def batch(spec: ImageSpec, side: int, rng: np.random.Generator, rows: int) -> Batch:
    """Random images and classes."""
    images = rng.standard_normal((rows, side, side, spec.channels)).astype(np.float32)
    return Batch(
        (images,), rng.integers(0, spec.classes, rows, dtype=np.int32), np.ones(rows, np.float32)
    )


def probe_batch(spec: ImageSpec, side: int, rng: np.random.Generator, rows: int = 6) -> Batch:
    """The same for the parity gate, the last row padding."""
    found = batch(spec, side, rng, rows)
    found.weights[-1] = 0
    return found
