"""PyTorch's layers in Keras, on any of its backends; each weighted one is named by its torch module path."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from models.contract import Array
from models.layers.images import Size, pair
from models.transfer import layer_name


def images(channels: int = 3) -> Any:
    """The input: images (n, height, width, channels) of any size."""
    return keras.Input((None, None, channels))


def convolution(x: Any, filters: int, size: Size, path: str, *, strides: int = 1, padding: Size = 0, bias: bool = False) -> Any:
    """`padding` zeros on both sides of height and width: Keras' own `same` puts more on one side where it strides."""
    same = strides == 1 and pair(size) == tuple(2 * one + 1 for one in pair(padding))
    if not same:
        x = _padded(x, padding)
    return layers.Conv2D(filters, size, strides, "same" if same else "valid", use_bias=bias, name=layer_name(path))(x)


def depthwise(x: Any, size: int, path: str, *, strides: int = 1) -> Any:
    """A convolution of every channel alone, padded by half its size."""
    if strides > 1:
        x = _padded(x, size // 2)
    padding = "valid" if strides > 1 else "same"
    return layers.DepthwiseConv2D(size, strides, padding, use_bias=False, name=layer_name(path))(x)


def norm(x: Any, path: str, *, epsilon: float = 1e-5) -> Any:
    """torch's momentum 0.1 is the share of the new value; Keras' 0.9 that of the old."""
    return layers.BatchNormalization(epsilon=epsilon, momentum=0.9, name=layer_name(path))(x)


def max_pool(x: Any, size: int, *, strides: int, padding: int = 0) -> Any:
    """After a ReLU: zeros are then as good as torch's padding with -inf."""
    return layers.MaxPooling2D(size, strides)(_padded(x, padding))


def average_pool(x: Any, size: int, *, strides: int, padding: int = 0) -> Any:
    """Zeros of the padding count in the mean, as in torch."""
    return layers.AveragePooling2D(size, strides)(_padded(x, padding))


def flatten(x: Any) -> Any:
    """Flattens in channel-first order, as PyTorch does."""
    return layers.Flatten()(layers.Permute((3, 1, 2))(x))


def linear(x: Any, outputs: int, path: str) -> Any:
    return layers.Dense(outputs, name=layer_name(path))(x)


def dropout(x: Any, rate: float, path: str) -> Any:
    return layers.Dropout(rate, name=layer_name(path))(x) if rate else x


def network(inputs: Any, outputs: Any, name: str) -> keras.Model:
    return keras.Model(inputs, outputs, name=name)


def _padded(x: Any, padding: Size) -> Any:
    return layers.ZeroPadding2D(pair(padding))(x) if any(pair(padding)) else x


class AdaptiveAverage(layers.Layer):  # type: ignore[misc]
    """Means over windows, as torch.nn.AdaptiveAvgPool2d cuts them: (n, height, width, channels) -> (n, side, side, channels).

    Window i begins at ⌊i·h / side⌋ and ends at ⌈(i+1)·h / side⌉. Keras' own fails for one pixel on TensorFlow.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (input_shape[0], self.side, self.side, input_shape[3])

    def call(self, inputs: Any) -> Any:
        height, width = inputs.shape[1:3]
        if (height, width) == (self.side, self.side):
            return inputs
        rows, columns = (ops.convert_to_tensor(self._windows(size), dtype=inputs.dtype) for size in (height, width))
        return ops.einsum("oh,nhwc,pw->nopc", rows, inputs, columns)

    def _windows(self, size: int) -> Array:
        """(side, size): the weight of every input in every mean."""
        found = np.zeros((self.side, size))
        for window in range(self.side):
            start, end = window * size // self.side, -(-(window + 1) * size // self.side)
            found[window, start:end] = 1 / (end - start)
        return found
