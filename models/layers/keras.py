"""PyTorch's layers in Keras, on any backend; a weighted one is named by its torch path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import sqrt
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from keras.backend import backend

from models.contract import Array
from models.frameworks.tensorflow import operators
from models.layers import NEVER
from models.layers.images import MirroredSpec, Size, pair
from models.transfer import AS_IS, layer_name, weight_rule

add, multiply = ops.add, ops.multiply
relu, relu6, silu, sigmoid = ops.relu, ops.relu6, ops.silu, ops.sigmoid


def images(channels: int = 3, side: int | None = None) -> Any:
    """Return the input of a network of images.

    Args:
        channels: Channels of an image.
        side: Height and width; None for images of any size.

    Returns:
        (n, height, width, channels).
    """
    return keras.Input((side, side, channels))


def build(spec: MirroredSpec) -> keras.Model:
    """Return a network: call(images (n, height, width, channels)) -> (n, classes)."""
    inputs = images(spec.channels, spec.only_side)
    name = type(spec).__module__.split(".")[-2]
    return network(inputs, spec.network(inputs, sys.modules[__name__]), name)


def built(layer: Any, *shape: int | None) -> Any:
    """Build a layer, so that it has its weights.

    Args:
        layer: Layer of Keras.
        shape: Of its inputs, None for an axis of any size.
    """
    layer.build(shape)
    return layer


def scan(step: Callable[[Any, Any], Any], first: Any, inputs: Any) -> Any:
    """Return the state after each step, stacked along the first axis; compilers see one loop.

    Args:
        step: Returns the next state of a state and one step's inputs.
        first: State before the first step.
        inputs: Arrays, nested, whose first axis is that of the steps.
    """
    if backend() == "tensorflow":  # XLA differentiates TensorFlow's scan, but not that of Keras
        return operators.scan(step, inputs, first)
    return ops.scan(lambda state, now: (step(state, now),) * 2, first, inputs)[1]


def mask(lengths: Any, longest: Any) -> Any:
    """Return which positions lie inside the lengths.

    Args:
        lengths: Of the rows, (n,).
        longest: Positions of a row.

    Returns:
        bool (n, longest).
    """
    return ops.arange(longest, dtype="int32") < ops.cast(lengths, "int32")[:, None]


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
    """Pad with zeros on both sides: Keras' own `same` puts more on one side where it strides."""
    is_same = strides == 1 and pair(size) == tuple(2 * half + 1 for half in pair(padding))
    if not is_same:
        x = _padded(x, padding)
    return layers.Conv2D(
        filters, size, strides, "same" if is_same else "valid", use_bias=bias, name=layer_name(path)
    )(x)


def depthwise(x: Any, size: int, path: str, *, strides: int = 1, bias: bool = False) -> Any:
    """Convolve each channel separately, padded by half the size."""
    if strides > 1:
        x = _padded(x, size // 2)
    padding = "valid" if strides > 1 else "same"
    return layers.DepthwiseConv2D(size, strides, padding, use_bias=bias, name=layer_name(path))(x)


def batch_norm(path: str, epsilon: float = 1e-5) -> Any:
    """Return a layer of `norm`.

    PyTorch's momentum of 0.1 is the share of the new value, Keras' of 0.9 that of the old one.
    """
    return layers.BatchNormalization(epsilon=epsilon, momentum=0.9, name=layer_name(path))


def norm(x: Any, path: str, *, epsilon: float = 1e-5) -> Any:
    """Normalise channels as torch.nn.BatchNorm2d does.

    Args:
        x: Images (n, height, width, channels), or (n, channels).
        path: Path of the layer in PyTorch.
        epsilon: Added to the variance.
    """
    return batch_norm(path, epsilon)(x)


def max_pool(x: Any, size: int, *, strides: int, padding: int = 0) -> Any:
    """Pool behind a ReLU: zeros are then as good as PyTorch's padding with -inf.

    Args:
        x: Images (n, height, width, channels).
        size: Height and width of the window, in pixels.
        strides: Pixels between windows.
        padding: Zeros on each side.
    """
    return layers.MaxPooling2D(size, strides)(_padded(x, padding))


def average_pool(x: Any, size: int, *, strides: int, padding: int = 0) -> Any:
    """Pool; zeros of the padding count in the mean, as in PyTorch.

    Args:
        x: Images (n, height, width, channels).
        size: Height and width of the window, in pixels.
        strides: Pixels between windows.
        padding: Zeros on each side.
    """
    return layers.AveragePooling2D(size, strides)(_padded(x, padding))


def adaptive_average(x: Any, side: int) -> Any:
    """Average over side × side windows as torch.nn.AdaptiveAvgPool2d does.

    Args:
        x: Images (n, height, width, channels).
        side: Windows in a row and in a column.
    """
    return AdaptiveAverage(side)(x)


def global_average(x: Any, *, keepdims: bool = False) -> Any:
    """Average over all pixels.

    Args:
        x: Images (n, height, width, channels).
        keepdims: Whether the result is (n, 1, 1, channels) and not (n, channels).
    """
    return layers.GlobalAveragePooling2D(keepdims=keepdims)(x)


def flatten(x: Any, pixels: int = 0) -> Any:
    """Flatten with the channels first, as PyTorch does.

    Args:
        x: Images (n, height, width, channels).
        pixels: Number of pixels, for a recorder of shapes.
    """
    return layers.Flatten()(layers.Permute((3, 1, 2))(x))


def rescale(x: Any, scales: Any, offsets: Any) -> Any:
    """Multiply and add, channel by channel.

    Args:
        x: Images (n, height, width, channels).
        scales: Factors, (channels,).
        offsets: Summands, (channels,).
    """
    return layers.Rescaling(scales, offsets)(x)


def concatenate(*tensors: Any) -> Any:
    """Join tensors along the channels.

    Args:
        tensors: Images of equal height and width.
    """
    return layers.Concatenate()(list(tensors))


def linear(x: Any, outputs: int, path: str) -> Any:
    """Apply torch.nn.Linear.

    Args:
        x: Any shape (…, inputs).
        outputs: Width of the result.
        path: Path of the layer in PyTorch.
    """
    return layers.Dense(outputs, name=layer_name(path))(x)


def dropout(x: Any, rate: float, path: str) -> Any:
    """Drop single values in training.

    Args:
        x: Any shape.
        rate: Share that is dropped; 0 adds no layer.
        path: Path of the layer in PyTorch.
    """
    return layers.Dropout(rate, name=layer_name(path))(x) if rate else x


def drop_images(x: Any, rate: float, path: str) -> Any:
    """Drop whole images in training (stochastic depth).

    Args:
        x: Images (n, height, width, channels).
        rate: Share that is dropped; 0 adds no layer.
        path: Path of the layer in PyTorch.
    """
    shape = (None, 1, 1, 1)
    return layers.Dropout(rate, noise_shape=shape, name=layer_name(path))(x) if rate else x


def gelu(x: Any) -> Any:
    """Apply the exact GELU, written out.

    TensorFlow's own takes the root of two in float32: it is off by 1.6e-9 in float64.
    """
    return 0.5 * x * (1 + ops.erf(x * sqrt(0.5)))


def layer_norm(x: Any, path: str, *, epsilon: float = 1e-5) -> Any:
    """Normalise the last axis as torch.nn.LayerNorm does.

    Args:
        x: Any shape (…, width).
        path: Path of the layer in PyTorch.
        epsilon: Added to the variance.
    """
    return layers.LayerNormalization(epsilon=epsilon, name=layer_name(path))(x)


def scale(x: Any, path: str) -> Any:
    """Multiply each channel by a learned factor.

    Args:
        x: Any shape (…, channels).
        path: Path of `Scale` in PyTorch.
    """
    return Scale(name=layer_name(path))(x)


def embedding(tokens: Any, rows: int, width: int, path: str) -> Any:
    """Look up learned vectors.

    Args:
        tokens: Integers (n, length).
        rows: Number of vectors.
        width: Size of a vector.
        path: Path of the layer in PyTorch.
    """
    return layers.Embedding(rows, width, name=layer_name(path))(tokens)


def position_embedding(x: Any, rows: int, path: str) -> Any:
    """Add a learned vector to each position.

    Args:
        x: (n, length, width).
        rows: Largest length.
        path: Path of `PositionEmbedding` in PyTorch.
    """
    return PositionEmbedding(rows, name=layer_name(path))(x)


def attention(x: Any, heads: int, path: str, *, dropout: float = 0.0) -> Any:
    """Apply self-attention; its parts are `query`, `key`, `value`, `output`.

    Args:
        x: (n, length, width).
        heads: Number of heads.
        path: Path of `Attention` in PyTorch.
        dropout: Rate of the shares that are dropped.
    """
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
    """Return what each position takes from the visible ones, (n, length, width).

    Args:
        query: Of each position, (n, length, width).
        key: Of each position, (n, length, width).
        value: Of each position, (n, length, width).
        heads: Number of heads.
        seen: Mask of the visible ones (n · heads, 1 or length, length), None for all.
        drop: Dropout of the attention's shares.
    """
    shape, size = ops.shape(query), query.shape[-1] // heads

    def split(x: Any) -> Any:
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
    """Return the network between inputs and outputs.

    Args:
        inputs: Result of `images`, or several.
        outputs: What the layers return.
        name: Name of the model.
    """
    return keras.Model(inputs, outputs, name=name)


def _padded(x: Any, padding: Size) -> Any:
    return layers.ZeroPadding2D(pair(padding))(x) if any(pair(padding)) else x


class Scale(layers.Layer):  # type: ignore[misc]
    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.weight = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="weight")

    def call(self, inputs: Any) -> Any:
        return inputs * self.weight


class PositionEmbedding(layers.Layer):  # type: ignore[misc]
    """Vector for each position, added to (n, length, width)."""

    def __init__(self, rows: int, **options: Any) -> None:
        super().__init__(**options)
        self.rows = rows

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.weight = self.add_weight(shape=(self.rows, input_shape[-1]), name="weight")

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape  # Keras would try a length that has no vectors

    def call(self, inputs: Any) -> Any:
        return inputs + self.weight[: ops.shape(inputs)[1]]


class Attention(layers.Layer):  # type: ignore[misc]
    """Self-attention; its name is the path of the four projections and of the layer that drops."""

    def __init__(self, heads: int, dropout: float, **options: Any) -> None:
        super().__init__(**options)
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
        drop = partial(self.dropout, training=training)
        query, key, value = self.to_query(inputs), self.to_key(inputs), self.to_value(inputs)
        return self.to_output(attend(query, key, value, self.heads, drop=drop))


for _kind in (Scale, PositionEmbedding):
    weight_rule(_kind, f"`{_kind.__name__}` of `models.layers.pytorch`")(
        lambda layer: iter([("weight", layer.weight, AS_IS)])
    )


class AdaptiveAverage(layers.Layer):  # type: ignore[misc]
    """Means over windows as torch.nn.AdaptiveAvgPool2d cuts them: (n, side, side, channels).

    Window i begins at ⌊i·h / side⌋ and ends at ⌈(i+1)·h / side⌉. Keras' own fails for one pixel
    on TensorFlow.
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
        """Return the weight of each input in each mean, (side, size)."""
        weights = np.zeros((self.side, size))
        for window in range(self.side):
            start, end = window * size // self.side, -(-(window + 1) * size // self.side)
            weights[window, start:end] = 1 / (end - start)
        return weights


class Sequences(keras.Model):  # type: ignore[misc]
    """Network of sequences: `parts` and `drops` are its layers by their torch paths."""

    def __init__(
        self,
        spec: Any,
        shapes: Mapping[str, tuple[int, ...]],
        dropouts: Iterable[str] = (),
        **options: Any,
    ) -> None:
        """Make the layers.

        Args:
            spec: Sizes of the network, and the rate of its dropouts.
            shapes: Of the arrays of the weighted layers, by PyTorch's names.
            dropouts: Paths of the dropouts.
            options: `merge_mode` of LSTMs that run both ways, `epsilon` of LayerNorms.
        """
        super().__init__()
        self.spec, self.parts = spec, {}
        for name, shape in shapes.items():
            path, _, array = name.rpartition(".")
            if array in ("weight", "weight_ih", "weight_ih_l0"):
                layer = _of_sequences(path, array, shapes, **options)
                self.parts[path] = built(layer, None, None, shape[min(1, len(shape) - 1)])
        self.drops = {
            path: layers.Dropout(spec.dropout, name=layer_name(path)) for path in dropouts
        }
        self.built = True

    def drop(self, path: str, x: Any, training: bool) -> Any:
        return self.drops[path](x, training=training)


def _of_sequences(
    path: str,
    array: str,
    shapes: Mapping[str, tuple[int, ...]],
    merge_mode: str = "concat",
    epsilon: float = 1e-5,
) -> Any:
    """Return the layer of an array of weights; convolutions keep the length of a sequence."""
    shape, name, has_bias = shapes[f"{path}.{array}"], layer_name(path), f"{path}.bias" in shapes
    if array == "weight_ih":
        return layers.LSTMCell(shape[0] // 4, name=name)
    if f"{path}.{array}_reverse" in shapes:
        lstm = layers.LSTM(shape[0] // 4, return_sequences=True)
        return layers.Bidirectional(lstm, merge_mode, name=name)
    if array == "weight_ih_l0":
        return layers.LSTM(shape[0] // 4, return_sequences=True, name=name)
    if f"{path}.running_mean" in shapes:
        return batch_norm(path)
    if len(shape) == 1:
        return layers.LayerNormalization(epsilon=epsilon, name=name)
    if len(shape) == 3:
        return layers.Conv1D(shape[0], shape[2], padding="same", use_bias=has_bias, name=name)
    if "embedding" in path:
        return layers.Embedding(*shape, name=name)
    return layers.Dense(shape[0], use_bias=has_bias, name=name)
