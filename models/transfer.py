"""Weights between a PyTorch state_dict's names and layouts and Keras variables, by layer type and layer name.

Every weighted Keras layer bears its torch module path as its name, dots written as hyphens (`features-denseblock1-norm1`),
because Keras on PyTorch refuses dots and no module path has a hyphen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import layers

from models.contract import Array, ModelError, Weights, check_weights


@dataclass(frozen=True)
class Layout:
    """How one Keras array is laid out in PyTorch; the two functions are each other's inverse."""

    to_torch: Callable[[Array], Array]
    to_keras: Callable[[Array, tuple[int, ...]], Array]


@dataclass(frozen=True)
class Entry:
    """One array of a network: its torch name, its Keras variable and the layout between them."""

    name: str
    variable: Any
    layout: Layout

    def shape(self) -> tuple[int, ...]:
        """The shape in PyTorch's layout, found without copying the values."""
        return tuple(self.layout.to_torch(np.broadcast_to(np.float32(0), tuple(self.variable.shape))).shape)


AS_IS = Layout(lambda array: array, lambda array, _: array)
LINEAR = Layout(np.transpose, lambda array, _: np.transpose(array))
CONVOLUTION = Layout(  # HWIO <-> OIHW
    lambda kernel: kernel.transpose(3, 2, 0, 1), lambda kernel, _: kernel.transpose(2, 3, 1, 0)
)
SEQUENCE = Layout(lambda kernel: kernel.transpose(2, 1, 0), lambda kernel, _: kernel.transpose(2, 1, 0))  # WIO <-> OIW
DEPTHWISE = Layout(  # (H, W, C, multiplier) <-> (C·multiplier, 1, H, W)
    lambda kernel: kernel.transpose(2, 3, 0, 1).reshape(-1, 1, *kernel.shape[:2]),
    lambda kernel, shape: kernel.reshape(shape[2], shape[3], *shape[:2]).transpose(2, 3, 0, 1),
)


def layer_name(path: str) -> str:
    """The Keras layer's name of a torch module path."""
    return path.replace(".", "-")


def layer_path(name: str) -> str:
    """The torch module path of a Keras layer's name."""
    return name.replace("-", ".")


def entries(network: Any) -> dict[str, Entry]:
    """Torch name -> entry for every array of the network, in the order of its layers."""
    found: dict[str, Entry] = {}
    for layer in network.layers:
        for suffix, variable, layout in _arrays(layer):
            name = f"{layer_path(layer.name)}.{suffix}"
            if name in found:
                raise ModelError(f"two layers are called {layer.name!r}")
            found[name] = Entry(name, variable, layout)
    return found


def from_keras(found: Mapping[str, Entry], values: Callable[[Any], Any] = lambda variable: variable) -> Weights:
    """Torch-layout copies of `values(variable)`, which may turn a variable into, say, its gradient."""
    return {name: np.array(entry.layout.to_torch(_numpy(values(entry.variable))), order="C") for name, entry in found.items()}


def to_keras(found: Mapping[str, Entry], weights: Mapping[str, Array]) -> None:
    """Assigns weights of PyTorch's names and layouts. Raises ModelError naming the first array that does not fit."""
    check_weights(weights, {name: entry.shape() for name, entry in found.items()})
    for name, entry in found.items():
        entry.variable.assign(np.ascontiguousarray(entry.layout.to_keras(weights[name], tuple(entry.variable.shape))))


def _numpy(value: Any) -> Array:
    from keras import ops

    array: Array = ops.convert_to_numpy(value)
    return array


def _arrays(layer: Any) -> Iterator[tuple[str, Any, Layout]]:
    """(torch suffix, variable, layout) of each array of a layer. Raises ModelError for weighted layers of other types."""
    if isinstance(layer, layers.DepthwiseConv2D):
        yield "weight", layer.kernel, DEPTHWISE
        yield from _bias(layer)
    elif isinstance(layer, layers.Conv2D):
        yield "weight", layer.kernel, CONVOLUTION
        yield from _bias(layer)
    elif isinstance(layer, layers.Conv1D):
        yield "weight", layer.kernel, SEQUENCE
        yield from _bias(layer)
    elif isinstance(layer, layers.Dense):
        yield "weight", layer.kernel, LINEAR
        yield from _bias(layer)
    elif isinstance(layer, layers.Embedding):
        yield "weight", layer.embeddings, AS_IS
    elif isinstance(layer, layers.LSTMCell):
        yield from _lstm(layer, "")
    elif isinstance(layer, layers.LSTM):
        yield from _lstm(layer.cell, "_l0")
    elif isinstance(layer, layers.Bidirectional):
        yield from _lstm(layer.forward_layer.cell, "_l0")
        yield from _lstm(layer.backward_layer.cell, "_l0_reverse")
    elif isinstance(layer, layers.BatchNormalization):
        yield "weight", layer.gamma, AS_IS
        yield "bias", layer.beta, AS_IS
        yield "running_mean", layer.moving_mean, AS_IS
        yield "running_var", layer.moving_variance, AS_IS
    elif isinstance(layer, layers.LayerNormalization):
        yield "weight", layer.gamma, AS_IS
        yield "bias", layer.beta, AS_IS
    elif layer.weights and not isinstance(layer, layers.Dropout):  # Dropout's only weight is its seed
        raise ModelError(f"layer {layer.name!r}: no rule moves the weights of a {type(layer).__name__}")


def _lstm(cell: Any, suffix: str) -> Iterator[tuple[str, Any, Layout]]:
    """Both order the gates i f g o."""
    yield f"weight_ih{suffix}", cell.kernel, LINEAR
    yield f"weight_hh{suffix}", cell.recurrent_kernel, LINEAR
    yield f"bias_ih{suffix}", cell.bias, AS_IS


def _bias(layer: Any) -> Iterator[tuple[str, Any, Layout]]:
    if layer.use_bias:
        yield "bias", layer.bias, AS_IS
