"""Weights between PyTorch's names and layouts and Keras variables, by type and name of the layer.

A weighted Keras layer has its torch module path as its name, dots written as hyphens
(`features-denseblock1-norm1`): Keras on PyTorch refuses dots, and no module path has a hyphen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from keras import layers, ops

from models.contract import Array, ErrorCode, ModelError, Weights, check_weights


@dataclass(frozen=True)
class Layout:
    """Layout of a PyTorch array in Keras; the two functions are each other's inverse.

    to_torch: of the arrays of the Keras variables that hold it, mostly one. to_keras: of the array
    and these variables, whose shapes it may want; as many arrays as there are variables.
    """

    to_torch: Callable[..., Array]
    to_keras: Callable[..., Array | tuple[Array, ...]]


@dataclass(frozen=True)
class Entry:
    """Array of a network: its torch name, its Keras variables and the layout between them."""

    name: str
    variables: tuple[Any, ...]
    layout: Layout

    def shape(self) -> tuple[int, ...]:
        """Return the shape in PyTorch's layout, without the values."""
        zeros = (
            np.broadcast_to(np.float32(0), tuple(variable.shape)) for variable in self.variables
        )
        return tuple(self.layout.to_torch(*zeros).shape)


def _gates(array: Array) -> Array:
    """Exchange the gates of a GRU along the last axis: r z n <-> z r n."""
    first, second, third = np.split(array, 3, axis=-1)
    return np.concatenate([second, first, third], axis=-1)


def _row(index: int) -> Layout:
    """Return the layout of a row of a GRU's bias."""

    def to_keras(array: Array, bias: Any) -> Array:
        rows = np.array(ops.convert_to_numpy(bias))
        rows[index] = _gates(array)
        return rows

    return Layout(lambda bias: _gates(bias[index]), to_keras)


def _thirds(rows: Array, variables: Any, turn: Callable[[Array], Array]) -> tuple[Array, ...]:
    pairs = zip(np.split(rows, 3), variables, strict=True)
    return tuple(turn(part).reshape(variable.shape) for part, variable in pairs)


AS_IS = Layout(lambda array: array, lambda array, _: array)
LINEAR = Layout(np.transpose, lambda array, _: np.transpose(array))
CONVOLUTION = Layout(  # HWIO <-> OIHW; of a transposed one HWOI <-> IOHW
    lambda kernel: kernel.transpose(3, 2, 0, 1), lambda kernel, _: kernel.transpose(2, 3, 1, 0)
)
SEQUENCE = Layout(
    lambda kernel: kernel.transpose(2, 1, 0), lambda kernel, _: kernel.transpose(2, 1, 0)
)  # WIO <-> OIW
DEPTHWISE = Layout(  # (H, W, C, multiplier) <-> (C·multiplier, 1, H, W)
    lambda kernel: kernel.transpose(2, 3, 0, 1).reshape(-1, 1, *kernel.shape[:2]),
    lambda kernel, like: kernel.reshape(*like.shape[2:], *like.shape[:2]).transpose(2, 3, 0, 1),
)
GATES = Layout(lambda kernel: _gates(kernel).T, lambda kernel, _: _gates(kernel.T))
# Query, key and value, (inputs, heads, size) each <-> one below the other, (3·heads·size, inputs)
PROJECTIONS = Layout(
    lambda *kernels: np.concatenate([kernel.reshape(len(kernel), -1).T for kernel in kernels]),
    lambda rows, *variables: _thirds(rows, variables, np.transpose),
)
PROJECTION_BIASES = Layout(
    lambda *biases: np.concatenate([bias.ravel() for bias in biases]),
    lambda rows, *variables: _thirds(rows, variables, np.asarray),
)
HEADS = Layout(  # (heads, size, outputs) <-> (outputs, heads·size)
    lambda kernel: kernel.reshape(-1, kernel.shape[-1]).T,
    lambda kernel, variable: kernel.T.reshape(variable.shape),
)

# PyTorch's name within the layer, or "" for a parameter that is called like the layer; the Keras
# variable, or several that are one array in PyTorch; the layout between them.
Arrays = Iterator[tuple[str, Any, Layout]]
# Type of a Keras layer -> its sibling in PyTorch, and what yields the arrays of a layer.
RULES: dict[type[Any], tuple[str, Callable[[Any], Arrays]]] = {}


def weight_rule(kind: type[Any], sibling: str = "") -> Callable[[Callable[[Any], Arrays]], Any]:
    """Make the decorated function yield the arrays of each layer of a type, parts included.

    A model of one's own states one in its `keras.py` for a layer type that has none here.
    """

    def state(arrays: Callable[[Any], Arrays]) -> Callable[[Any], Arrays]:
        RULES[kind] = sibling, arrays
        return arrays

    return state


def layer_name(path: str) -> str:
    """Return the name of a Keras layer.

    Args:
        path: Torch module path, such as `layer1.0.conv1`.
    """
    return path.replace(".", "-")


def layer_path(name: str) -> str:
    """Return the torch module path of a Keras layer.

    Args:
        name: Its name, such as `layer1-0-conv1`.
    """
    return name.replace("-", ".")


def entries(network: Any) -> dict[str, Entry]:
    """Return the arrays of a network by torch name, in the order of its layers."""
    arrays: dict[str, Entry] = {}
    for name, variables, layout in _arrays(network):
        if name in arrays and arrays[name].variables[0] is not variables[0]:
            raise ModelError(ErrorCode.DUPLICATE, f"two layers have a {name!r}")
        arrays[name] = Entry(name, variables, layout)
    return arrays


def from_keras(
    arrays: Mapping[str, Entry], values: Callable[[Any], Any] = lambda variable: variable
) -> Weights:
    """Return copies of `values(variable)`, such as its gradient, in torch's layout."""
    weights: Weights = {}
    for name, entry in arrays.items():
        parts = (ops.convert_to_numpy(values(variable)) for variable in entry.variables)
        weights[name] = np.array(entry.layout.to_torch(*parts), order="C")
    return weights


def to_keras(entries: Mapping[str, Entry], weights: Mapping[str, Array]) -> None:
    """Assign weights of PyTorch's names and layouts. Raise ModelError for one that does not fit."""
    check_weights(weights, {name: entry.shape() for name, entry in entries.items()})
    for name, entry in entries.items():
        arrays = entry.layout.to_keras(weights[name], *entry.variables)
        arrays = arrays if isinstance(arrays, tuple) else (arrays,)
        for variable, array in zip(entry.variables, arrays, strict=True):
            variable.assign(np.ascontiguousarray(array))


def _arrays(layer: Any) -> Iterator[tuple[str, tuple[Any, ...], Layout]]:
    """Yield (name, variables, layout) of a layer's arrays by its rule, or of its parts' arrays.

    Raise ModelError if no rule moves a variable.
    """
    kind = next((kind for kind in type(layer).__mro__ if kind in RULES), None)
    moved = set[int]()
    for suffix, several, layout in RULES[kind][1](layer) if kind else ():
        variables = several if isinstance(several, tuple) else (several,)
        moved |= set(map(id, variables))
        path = layer_path(layer.name)
        yield f"{path}.{suffix}" if suffix else path, variables, layout
    without_parts = layer._trainable_variables + layer._non_trainable_variables
    of_itself = layer.weights if kind else without_parts
    if left := [variable.name for variable in of_itself if id(variable) not in moved]:
        raise ModelError(
            ErrorCode.UNSUPPORTED,
            f"layer {layer.name!r}: no rule moves {left[0]!r} of a {type(layer).__name__}; "
            "state one in keras.py, by models.transfer.weight_rule",
        )
    for part in () if kind else layer._flatten_layers(include_self=False, recursive=False):
        yield from _arrays(part)


def _kernel(layout: Layout, layer: Any) -> Arrays:
    yield "weight", layer.kernel, layout
    if layer.use_bias:
        yield "bias", layer.bias, AS_IS


for _kind, _layout, _sibling in (
    (layers.Dense, LINEAR, "`nn.Linear`"),
    (layers.DepthwiseConv2D, DEPTHWISE, "`nn.Conv2d` with `groups`"),
    (layers.Conv2D, CONVOLUTION, "`nn.Conv2d`"),
    (layers.Conv2DTranspose, CONVOLUTION, "`nn.ConvTranspose2d`"),
    (layers.Conv1D, SEQUENCE, "`nn.Conv1d`"),
):
    weight_rule(_kind, _sibling)(partial(_kernel, _layout))


weight_rule(layers.Embedding, "`nn.Embedding`")(
    lambda layer: iter([("weight", layer.embeddings, AS_IS)])
)


@weight_rule(layers.BatchNormalization, "`nn.BatchNorm2d`, `nn.BatchNorm1d`")
def _batch_norm(layer: Any) -> Arrays:
    yield from _norm(layer)
    yield "running_mean", layer.moving_mean, AS_IS
    yield "running_var", layer.moving_variance, AS_IS


@weight_rule(layers.LayerNormalization, "`nn.LayerNorm`")
@weight_rule(layers.GroupNormalization, "`nn.GroupNorm`")
def _norm(layer: Any) -> Arrays:
    if layer.scale:
        yield "weight", layer.gamma, AS_IS
    if layer.center:
        yield "bias", layer.beta, AS_IS


@weight_rule(layers.MultiHeadAttention, "`nn.MultiheadAttention`, its `dropout` 0")
def _attention(layer: Any) -> Arrays:
    projections = [layer.query_dense, layer.key_dense, layer.value_dense]
    yield "in_proj_weight", tuple(dense.kernel for dense in projections), PROJECTIONS
    yield "out_proj.weight", layer.output_dense.kernel, HEADS
    if layer.use_bias:
        yield "in_proj_bias", tuple(dense.bias for dense in projections), PROJECTION_BIASES
        yield "out_proj.bias", layer.output_dense.bias, AS_IS


@weight_rule(layers.LSTMCell, "`OneBiasCell` of `models.layers.pytorch`")
@weight_rule(layers.GRUCell, "`nn.GRUCell`")
def _cell(cell: Any, suffix: str = "") -> Arrays:
    is_gru = isinstance(cell, layers.GRUCell)
    if is_gru and not (cell.reset_after and cell.use_bias):
        text = f"layer {cell.name!r}: PyTorch's GRU has biases, and resets after the product"
        raise ModelError(ErrorCode.UNSUPPORTED, text)
    yield f"weight_ih{suffix}", cell.kernel, GATES if is_gru else LINEAR
    yield f"weight_hh{suffix}", cell.recurrent_kernel, GATES if is_gru else LINEAR
    yield f"bias_ih{suffix}", cell.bias, _row(0) if is_gru else AS_IS
    if is_gru:
        yield f"bias_hh{suffix}", cell.bias, _row(1)


for _kind, _sibling in (
    (layers.LSTM, "`OneBiasLSTM` of `models.layers.pytorch`"),
    (layers.GRU, "`nn.GRU` of one layer"),
):
    weight_rule(_kind, _sibling)(lambda layer: _cell(layer.cell, "_l0"))


@weight_rule(layers.Bidirectional, "`nn.GRU` or `OneBiasLSTM`, `bidirectional=True`")
def _bidirectional(layer: Any) -> Arrays:
    yield from _cell(layer.forward_layer.cell, "_l0")
    yield from _cell(layer.backward_layer.cell, "_l0_reverse")
