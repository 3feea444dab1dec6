"""LSTMs over padded sequences on Keras' backends; pytorch.py is its twin.

Weights are those of a Keras layer in each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import layers, ops
from keras.backend import backend

from models.contract import ErrorCode, ModelError
from models.frameworks.tensorflow import operators as tensorflow
from models.layers.keras import scan as loop
from models.lstms import FLOAT32_ALONE


def outputs(
    implementation: str, layer: Any, steps: Any, inside: Any = None, *, training: bool = False
) -> Any:
    """Return the outputs of an LSTM, (n, T, width or twice), zeros outside the rows.

    Args:
        implementation: One of `models.lstms.IMPLEMENTATIONS`.
        layer: An LSTM or a Bidirectional one, which returns sequences.
        steps: Padded rows (n, T, inputs).
        inside: Mask of the positions before the end of each row (n, T), None for all.
        training: Whether it trains.

    Raises:
        ModelError: The backend lacks the implementation.
    """
    if implementation == "layer":
        states = layer(steps, mask=inside, training=training)
    elif isinstance(layer, layers.Bidirectional):
        run, order = _run(implementation), _reversed_order(steps, inside)
        backward = run(_take(steps, order), layer.backward_layer.cell)
        directions = [run(steps, layer.forward_layer.cell), _take(backward, order)]
        is_sum = layer.merge_mode == "sum"
        states = ops.add(*directions) if is_sum else ops.concatenate(directions, axis=2)
    else:
        states = _run(implementation)(steps, layer.cell)
    return states if inside is None else states * ops.cast(inside, states.dtype)[:, :, None]


def _run(implementation: str) -> Callable[[Any, Any], Any]:
    if implementation in FLOAT32_ALONE and backend() != "tensorflow":
        other = f"on {backend()} Keras has layer, cells, scan"
        raise ModelError(ErrorCode.UNSUPPORTED, f"lstm {implementation!r} is TensorFlow's; {other}")
    return RUNS[implementation]


def _cells(steps: Any, cell: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        gates = ops.matmul(x, cell.kernel) + ops.matmul(h, cell.recurrent_kernel) + cell.bias
        return _apply_gates(gates, c)

    return _loop(step, steps, cell)


def _scan(steps: Any, cell: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        return _apply_gates(x + ops.matmul(h, cell.recurrent_kernel), c)

    return _loop(step, ops.matmul(steps, cell.kernel) + cell.bias, cell)


RUNS: dict[str, Callable[[Any, Any], Any]] = {
    "cells": _cells,
    "scan": _scan,
    "block": tensorflow.block,
    "block-v2": tensorflow.block_v2,
}


def _loop(step: Callable[[Any, Any], Any], inputs: Any, cell: Any) -> Any:
    zeros = ops.zeros((ops.shape(inputs)[0], cell.units), dtype=inputs.dtype)
    h, _ = loop(step, (zeros, zeros), ops.transpose(inputs, (1, 0, 2)))
    return ops.transpose(h, (1, 0, 2))


def _apply_gates(gates: Any, c: Any) -> tuple[Any, Any]:
    i, f, g, o = ops.split(gates, 4, axis=1)
    c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
    return ops.sigmoid(o) * ops.tanh(c), c


def _reversed_order(steps: Any, inside: Any) -> Any:
    """Return the indices that reverse each row and keep its padding, (n, T)."""
    n, longest = ops.shape(steps)[:2]
    at = ops.broadcast_to(ops.arange(longest, dtype="int32"), (n, longest))
    ends = longest
    if inside is not None:
        ends = ops.sum(ops.cast(inside, "int32"), axis=1, keepdims=True)
    return ops.where(at < ends, ends - 1 - at, at)


def _take(steps: Any, order: Any) -> Any:
    return ops.take_along_axis(steps, order[:, :, None], axis=1)
