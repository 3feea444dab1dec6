"""Sizes, shapes, initial weights and probes of networks that classify images. NumPy only."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, ClassVar

import numpy as np

from models.contract import Batch, ErrorCode, ModelError, Weights

Size = int | tuple[int, int]
# Public names (docs/own-model.md) that a spec.py needs no longer, and what they return.
DEPRECATED: dict[str, Callable[[ImageSpec], Any]] = {
    "shapes": lambda spec: spec.shapes(),
    "parameters": lambda spec: spec.shapes().parameters,
}


def __getattr__(name: str) -> Any:
    if name not in DEPRECATED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    text = f"{__name__}.{name} is deprecated: a spec.py needs it no longer; remove its import"
    warnings.warn(text, FutureWarning, stacklevel=2)
    return DEPRECATED[name]


class Shapes(dict[str, tuple[int, ...]]):
    """Shapes of weights and running statistics, in PyTorch's names and layouts.

    Attributes:
        frozen: Prefix of the names of weights that training leaves as they are; empty for none.
    """

    frozen = ""

    def convolution(
        self, path: str, outputs: int, inputs: int, size: Size, *, bias: bool = False
    ) -> None:
        self[f"{path}.weight"] = (outputs, inputs, *pair(size))
        if bias:
            self[f"{path}.bias"] = (outputs,)

    def norm(self, path: str, channels: int) -> None:
        """Add a BatchNorm with its running statistics.

        Args:
            path: Path of the layer in PyTorch.
            channels: Number of channels.
        """
        for part in ("weight", "bias", "running_mean", "running_var"):
            self[f"{path}.{part}"] = (channels,)

    def linear(self, path: str, outputs: int, inputs: int) -> None:
        """Add a linear layer.

        Args:
            path: Path of the layer in PyTorch.
            outputs: Width of its outputs.
            inputs: Width of its inputs.
        """
        self[f"{path}.weight"] = (outputs, inputs)
        self[f"{path}.bias"] = (outputs,)

    def layer_norm(self, path: str, width: int) -> None:
        """Add a LayerNorm.

        Args:
            path: Path of the layer in PyTorch.
            width: Size of the last axis.
        """
        self[f"{path}.weight"] = self[f"{path}.bias"] = (width,)

    def scale(self, path: str, width: int) -> None:
        """Add a factor for each channel.

        Args:
            path: Path of the layer in PyTorch.
            width: Number of channels.
        """
        self[f"{path}.weight"] = (width,)

    def embedding(self, path: str, rows: int, width: int) -> None:
        """Add an embedding, of tokens or of positions.

        Args:
            path: Path of the layer in PyTorch.
            rows: Number of vectors.
            width: Size of a vector.
        """
        self[f"{path}.weight"] = (rows, width)

    def attention(self, path: str, width: int) -> None:
        """Add the four projections of self-attention.

        Args:
            path: Path of the layer in PyTorch.
            width: Width of inputs and outputs.
        """
        for part in ("query", "key", "value", "output"):
            self.linear(f"{path}.{part}", width, width)

    def lstm(self, path: str, width: int, inputs: int, *, bidirectional: bool = False) -> None:
        """Add an LSTM with one bias vector for each gate."""
        for direction in ("", "_reverse") if bidirectional else ("",):
            self[f"{path}.weight_ih_l0{direction}"] = (4 * width, inputs)
            self[f"{path}.weight_hh_l0{direction}"] = (4 * width, width)
            self[f"{path}.bias_ih_l0{direction}"] = (4 * width,)

    @property
    def parameters(self) -> tuple[int, int]:
        """Number of trainable parameters, and of all others."""
        sizes = {name: prod(shape) for name, shape in self.items()}
        others = sum(size for name, size in sizes.items() if self._is_fixed(name))
        return sum(sizes.values()) - others, others

    def _is_fixed(self, name: str) -> bool:
        return ".running_" in name or bool(self.frozen and name.startswith(self.frozen))


def pair(size: Size) -> tuple[int, int]:
    """Return height and width.

    Args:
        size: Both, in pixels, or one number for both.
    """
    return (size, size) if isinstance(size, int) else size


class ShapeRecorder:
    """Layers that record the shapes of their weights; a tensor is its number of channels.

    Its methods are those of `models.layers.keras`, so that a network is written once.
    """

    def __init__(self) -> None:
        self.shapes = Shapes()

    def convolution(
        self, x: int, filters: int, size: Size, path: str, *, bias: bool = False, **_: Any
    ) -> int:
        self.shapes.convolution(path, filters, x, size, bias=bias)
        return filters

    def depthwise(self, x: int, size: int, path: str, **_: Any) -> int:
        self.shapes.convolution(path, x, 1, size)
        return x

    def norm(self, x: int, path: str, **_: Any) -> int:
        self.shapes.norm(path, x)
        return x

    def linear(self, x: int, outputs: int, path: str) -> int:
        self.shapes.linear(path, outputs, x)
        return outputs

    def flatten(self, x: int, pixels: int) -> int:
        return x * pixels

    def concatenate(self, *tensors: int) -> int:
        return sum(tensors)

    def _keep_channels(self, x: int, *_: Any, **__: Any) -> int:
        return x

    add = multiply = rescale = max_pool = average_pool = adaptive_average = _keep_channels
    global_average = relu = relu6 = silu = sigmoid = dropout = drop_images = _keep_channels


@dataclass(frozen=True)
class ImageSpec(ABC):
    """Network from images (n, height, width, channels) to logits (n, classes).

    Attributes:
        classes: Number of classes.
        least_side: Smallest height and width of an image, in pixels.
        only_side: The only height and width of an image, None if there are several.
        only_classes: The only number of classes, None if there are several.
        channels: Channels of an image.
        small: Sizes of the small version for the parity gate; the rest is as in the whole one.
        probe_side: Height and width of the gate's images.
    """

    classes: int = 1000

    least_side: ClassVar[int] = 1
    only_side: ClassVar[int | None] = None
    only_classes: ClassVar[int | None] = None
    channels: ClassVar[int] = 3
    small: ClassVar[Mapping[str, Any]] = {}
    probe_side: ClassVar[int] = 64

    def __post_init__(self) -> None:
        if self.classes is not None and self.classes < 1:
            raise ModelError(
                ErrorCode.INVALID_VALUE, f"classes must be at least 1, not {self.classes}"
            )
        if self.classes != (self.only_classes or self.classes):
            text = f"the network has {self.only_classes} classes, and is asked for {self.classes}"
            raise ModelError(ErrorCode.INVALID_VALUE, text)

    def refuses(self, side: int) -> str:
        """Return the reason for which square images of this side do not go through, or ""."""
        if self.only_side and side != self.only_side:
            return f"takes only images of {self.only_side} × {self.only_side}"
        if side < self.least_side:
            return f"needs images of at least {self.least_side} × {self.least_side}"
        return ""

    def least_rows(self, side: int) -> int:
        """Return the smallest batch of a training step: BatchNorm needs two values a channel.

        Args:
            side: Height and width of an image, in pixels.
        """
        has_norms = self.shapes().parameters[1] > 0
        return 2 if has_norms and self.last_norm(side) <= 1 else 1

    def last_norm(self, side: int) -> int:
        """Return the pixels a side that the last BatchNorm gets of an image.

        Args:
            side: Height and width of an image, in pixels.
        """
        return -(-side // 32)

    @abstractmethod
    def shapes(self) -> Shapes:
        """Return the shape of each array of the network, by name."""


@dataclass(frozen=True)
class MirroredSpec(ImageSpec):
    """Network that is written once, for `models.layers.keras` and for `ShapeRecorder`."""

    @abstractmethod
    def network(self, x: Any, nn: Any) -> Any:
        """Return the logits of images.

        Args:
            x: Images, or their number of channels.
            nn: `models.layers.keras` or a `ShapeRecorder`.
        """

    def shapes(self) -> Shapes:
        recorder = ShapeRecorder()
        self.network(self.channels, recorder)
        return recorder.shapes


def initial_weights(spec: ImageSpec, rng: np.random.Generator) -> Weights:
    """Draw He-normal convolutions (fan in), identity norms, and linear layers U(±1/√fan_in).

    Activations stay of order one at any depth.
    """
    weights: Weights = {}
    for name, shape in spec.shapes().items():
        if len(shape) == 4:
            values = rng.standard_normal(shape) * sqrt(2 / prod(shape[1:]))
        elif len(shape) == 2:
            values = rng.uniform(-1, 1, shape) / sqrt(shape[1])
        else:
            values = np.full(shape, name.endswith((".weight", ".running_var")))
        weights[name] = values.astype(np.float32)
    return weights


def batch(spec: ImageSpec, side: int, rng: np.random.Generator, rows: int) -> Batch:
    """Return random images and classes.

    Args:
        spec: Sizes of the network.
        side: Height and width, in pixels.
        rng: Draws them.
        rows: Number of images.
    """
    images = rng.standard_normal((rows, side, side, spec.channels)).astype(np.float32)
    classes = rng.integers(0, spec.classes, rows, dtype=np.int32)
    return Batch((images,), classes, np.ones(rows, np.float32))


def probe(
    sizes: type[ImageSpec], rng: np.random.Generator, *, full: bool = False
) -> tuple[ImageSpec, Batch]:
    """Return the small version of a network, or the whole, and a batch for the parity gate."""
    spec = sizes() if full else sizes(**sizes.small)
    return spec, probe_batch(spec, sizes.probe_side, rng)


def probe_batch(spec: ImageSpec, side: int, rng: np.random.Generator, rows: int = 6) -> Batch:
    """Return random images and classes for the parity gate, the last row padding."""
    images = batch(spec, side, rng, rows)
    images.weights[-1] = 0
    return images
