"""What layers do in training mode, seen from outside: for the parity gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np
from keras import layers, ops

from models.contract import Array, Dropping
from models.transfer import layer_path


def droppers(network: Any) -> dict[str, Any]:
    """By path: layers that drop."""
    return {layer_path(layer.name): layer for layer in network.layers if isinstance(layer, layers.Dropout)}


def drop_nothing(found: Iterable[Any]) -> None:
    for layer in found:
        layer.rate = 0.0


def dropping(network: Any, inputs: Any, draws: int) -> dict[str, Dropping]:
    found, given = droppers(network), dict[str, list[Any]]()
    rates = {path: layer.rate for path, layer in found.items()}

    def watch(path: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(given_now: Any, training: bool = False) -> Any:
            if training:
                given.setdefault(path, []).append(given_now)
            return call(given_now, training=training)

        return watched

    drop_nothing(found.values())
    for path, layer in found.items():
        layer.call = watch(path, layer.call)
    network(inputs, training=True)
    for path, layer in found.items():
        del layer.call
        layer.rate = rates[path]
    return {path: Dropping(_flat(tensors), _drawn(found[path], tensors[0], draws)) for path, tensors in given.items()}


def _drawn(layer: Any, like: Any, draws: int) -> Array:
    sizes = [min(size, 2) for size in like.shape[1:]]
    return _numpy(layer(ops.ones((draws // prod(sizes), *sizes), like.dtype), training=True))


def _flat(tensors: list[Any]) -> Array:
    return np.concatenate([_numpy(tensor).ravel() for tensor in tensors])


def _numpy(tensor: Any) -> Array:
    array: Array = ops.convert_to_numpy(tensor)
    return array
