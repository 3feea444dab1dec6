"""PyTorch's layers in Keras, on any of its backends; each weighted one is named by its torch module path."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from models.contract import Array
from models.layers import NEVER
from models.layers.images import Size, pair
from models.transfer import AS_IS, Arrays, layer_name, weight_rule


def images(channels: int = 3) -> Any:
    """The input: images (n, height, width, channels) of any size."""
    return keras.Input((None, None, channels))


def convolution(
    x: Any,
    filters: int,
    size: Size,
    path: str,
    *,
    strides: int = 1,
    padding: Size = 0,
    bias: bool = False,
) -> Any:
    """`padding` zeros on both sides of height and width: Keras' own `same` puts more on one side where it strides."""
    same = strides == 1 and pair(size) == tuple(2 * one + 1 for one in pair(padding))
    if not same:
        x = _padded(x, padding)
    return layers.Conv2D(
        filters, size, strides, "same" if same else "valid", use_bias=bias, name=layer_name(path)
    )(x)


def depthwise(x: Any, size: int, path: str, *, strides: int = 1, bias: bool = False) -> Any:
    """A convolution of every channel alone, padded by half its size."""
    if strides > 1:
        x = _padded(x, size // 2)
    padding = "valid" if strides > 1 else "same"
    return layers.DepthwiseConv2D(size, strides, padding, use_bias=bias, name=layer_name(path))(x)


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


def gelu(x: Any) -> Any:
    """The exact one, written out: TensorFlow's own takes the root of two in float32."""
    return 0.5 * x * (1 + ops.erf(x * sqrt(0.5)))


def layer_norm(x: Any, path: str, *, epsilon: float = 1e-5) -> Any:
    return layers.LayerNormalization(epsilon=epsilon, name=layer_name(path))(x)


def scale(x: Any, path: str) -> Any:
    """Every channel times a learned factor."""
    return Scale(name=layer_name(path))(x)


def embedding(tokens: Any, rows: int, width: int, path: str) -> Any:
    return layers.Embedding(rows, width, name=layer_name(path))(tokens)


def position_embedding(x: Any, rows: int, path: str) -> Any:
    """Adds a learned vector to each position of (n, length, width); length is at most `rows`."""
    return PositionEmbedding(rows, name=layer_name(path))(x)


def attention(x: Any, heads: int, path: str, *, dropout: float = 0.0) -> Any:
    """Self-attention of (n, length, width); `query`, `key`, `value` and `output` are its parts."""
    return Attention(heads, dropout, name=layer_name(path))(x)


def attend(
    query: Any,
    key: Any,
    value: Any,
    heads: int,
    *,
    seen: Any = None,
    drop: Callable[[Any], Any] = lambda scores: scores,
) -> Any:
    """What each position takes from those that are seen, (n, length, width).

    seen: None for all, or a mask (n · heads, 1 or length, length).
    """
    shape, size = ops.shape(query), query.shape[-1] // heads

    def split(x: Any) -> Any:
        """(n · heads, length, size of a head)"""
        length = ops.shape(x)[1]
        by_head = ops.transpose(ops.reshape(x, (-1, length, heads, size)), (0, 2, 1, 3))
        return ops.reshape(by_head, (-1, length, size))

    scores = ops.matmul(split(query), ops.transpose(split(key), (0, 2, 1))) * (1 / sqrt(size))
    if seen is not None:
        scores = ops.where(seen, scores, NEVER)
    taken = ops.matmul(drop(ops.softmax(scores)), split(value))
    by_head = ops.reshape(taken, (-1, heads, shape[1], size))
    return ops.reshape(ops.transpose(by_head, (0, 2, 1, 3)), shape)


def network(inputs: Any, outputs: Any, name: str) -> keras.Model:
    return keras.Model(inputs, outputs, name=name)


def _padded(x: Any, padding: Size) -> Any:
    return layers.ZeroPadding2D(pair(padding))(x) if any(pair(padding)) else x


class Scale(layers.Layer):  # type: ignore[misc]
    """A factor for every channel, the last axis."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.weight = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="weight")

    def call(self, inputs: Any) -> Any:
        return inputs * self.weight


class PositionEmbedding(layers.Layer):  # type: ignore[misc]
    """A vector for every position, added to (n, length, width)."""

    def __init__(self, rows: int, **named: Any) -> None:
        super().__init__(**named)
        self.rows = rows

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.weight = self.add_weight(shape=(self.rows, input_shape[-1]), name="weight")

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape  # Keras would try a length that has no vectors

    def call(self, inputs: Any) -> Any:
        return inputs + self.weight[: ops.shape(inputs)[1]]


class Attention(layers.Layer):  # type: ignore[misc]
    """Self-attention; its name is the path of the four projections and of the layer that drops."""

    def __init__(self, heads: int, dropout: float, **named: Any) -> None:
        super().__init__(**named)
        self.heads = heads
        self.dropout = layers.Dropout(dropout, name=f"{self.name}-dropout")

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        for part in ("query", "key", "value", "output"):
            projection = layers.Dense(input_shape[-1], name=f"{self.name}-{part}")
            projection.build(input_shape)
            setattr(self, f"to_{part}", projection)  # `output` is a layer's own word in Keras

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def call(self, inputs: Any, training: bool = False) -> Any:
        def drop(scores: Any) -> Any:
            return self.dropout(scores, training=training)

        query, key, value = self.to_query(inputs), self.to_key(inputs), self.to_value(inputs)
        return self.to_output(attend(query, key, value, self.heads, drop=drop))


@weight_rule(Scale, "`Scale` of `models.layers.pytorch`")
@weight_rule(PositionEmbedding, "`PositionEmbedding` of `models.layers.pytorch`")
def _weight(layer: Any) -> Arrays:
    yield "weight", layer.weight, AS_IS


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
        rows, columns = (
            ops.convert_to_tensor(self._windows(size), dtype=inputs.dtype)
            for size in (height, width)
        )
        return ops.einsum("oh,nhwc,pw->nopc", rows, inputs, columns)

    def _windows(self, size: int) -> Array:
        """(side, size): the weight of every input in every mean."""
        found = np.zeros((self.side, size))
        for window in range(self.side):
            start, end = window * size // self.side, -(-(window + 1) * size // self.side)
            found[window, start:end] = 1 / (end - start)
        return found
