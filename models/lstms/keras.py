"""LSTMs over padded sequences on Keras' backends, in several implementations; pytorch.py is its twin.

Weights are those of a Keras layer, whatever the implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import layers, ops
from keras.backend import backend

from models.contract import ModelError
from models.frameworks.tensorflow import operators as tensorflow
from models.layers.scan import outputs_of


def outputs(
    implementation: str, layer: Any, steps: Any, there: Any = None, *, training: bool = False
) -> Any:
    """(n, T, inputs) -> (n, T, width or twice), zeros where nothing is `there` (n, T), which is so behind the end of a row.

    layer: an LSTM or a Bidirectional one, which returns sequences. Raises ModelError for what the backend lacks.
    """
    if implementation == "layer":
        found = layer(steps, mask=there, training=training)
    elif isinstance(layer, layers.Bidirectional):
        run, order = _run(implementation), _backwards(steps, there)
        back = _taken(run(_taken(steps, order), layer.backward_layer.cell), order)
        ways = [run(steps, layer.forward_layer.cell), back]
        found = ops.add(*ways) if layer.merge_mode == "sum" else ops.concatenate(ways, axis=2)
    else:
        found = _run(implementation)(steps, layer.cell)
    return found if there is None else found * ops.cast(there, found.dtype)[:, :, None]


def _run(implementation: str) -> Callable[[Any, Any], Any]:
    if implementation in tensorflow.LSTMS and backend() != "tensorflow":
        raise ModelError(
            f"lstm {implementation!r} is TensorFlow's; on {backend()} Keras has layer, cells, scan"
        )
    return RUNS[implementation]


def _cells(steps: Any, cell: Any) -> Any:
    def step(state: Any, now: Any) -> Any:
        h, c = state
        return _gated(
            ops.matmul(now, cell.kernel) + ops.matmul(h, cell.recurrent_kernel) + cell.bias, c
        )

    return _looped(step, steps, cell)


def _scan(steps: Any, cell: Any) -> Any:
    def step(state: Any, now: Any) -> Any:
        h, c = state
        return _gated(now + ops.matmul(h, cell.recurrent_kernel), c)

    return _looped(step, ops.matmul(steps, cell.kernel) + cell.bias, cell)


def _block(steps: Any, cell: Any) -> Any:
    return tensorflow.block(steps, cell.kernel, cell.recurrent_kernel, cell.bias)


def _block_v2(steps: Any, cell: Any) -> Any:
    return tensorflow.block_v2(steps, cell.kernel, cell.recurrent_kernel, cell.bias)


RUNS: dict[str, Callable[[Any, Any], Any]] = {
    "cells": _cells,
    "scan": _scan,
    "block": _block,
    "block-v2": _block_v2,
}


def _looped(step: Callable[[Any, Any], Any], given: Any, cell: Any) -> Any:
    zeros = ops.zeros((ops.shape(given)[0], cell.units), dtype=given.dtype)
    h, _ = outputs_of(step, (zeros, zeros), ops.transpose(given, (1, 0, 2)))
    return ops.transpose(h, (1, 0, 2))


def _gated(gates: Any, c: Any) -> tuple[Any, Any]:
    """The next (h, c)."""
    i, f, g, o = ops.split(gates, 4, axis=1)
    c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
    return ops.sigmoid(o) * ops.tanh(c), c


def _backwards(steps: Any, there: Any) -> Any:
    """(n, T): of every row its steps from its last to its first, then what is padding; taken twice, all are as they were."""
    n, most = ops.shape(steps)[:2]
    at = ops.broadcast_to(ops.arange(most, dtype="int32"), (n, most))
    ends = most if there is None else ops.sum(ops.cast(there, "int32"), axis=1, keepdims=True)
    return ops.where(at < ends, ends - 1 - at, at)


def _taken(steps: Any, order: Any) -> Any:
    return ops.take_along_axis(steps, order[:, :, None], axis=1)
