"""What layers do in training mode, seen from outside: for the parity gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np
from keras import layers, ops, tree

from models.contract import Array, Dropping
from models.layer_values import UNKNOWN, Recorder, fingerprint
from models.transfer import layer_path


def droppers(network: Any) -> dict[str, Any]:
    """By path: layers that drop, wherever they lie."""
    every = _all_layers(network)
    return {path: layer for path, layer in every.items() if isinstance(layer, layers.Dropout)}


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
    return {
        path: Dropping(_flat(tensors), _drawn(found[path], tensors[0], draws))
        for path, tensors in given.items()
    }


def layer_values(network: Any, inputs: Any) -> dict[str, Array]:
    """As PyTorch's layers: what they take not padded yet, what they return before an activation."""
    recorder, watched = Recorder(), _all_layers(network)
    unpadded = dict[bytes, Array]()
    activated = dict[str, Array]()

    def watch(path: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched_call(*arguments: Any, **named: Any) -> Any:
            taken, outputs = _fingerprint((arguments, named)), call(*arguments, **named)
            returned = activated.pop(path) if path in activated else _fingerprint(outputs)
            taken = unpadded.get(taken.tobytes(), taken)
            if isinstance(watched[path], (layers.ZeroPadding1D, layers.ZeroPadding2D)):
                unpadded[returned.tobytes()] = taken
            recorder.add(path, taken, returned)
            return outputs

        return watched_call

    def watch_activation(path: str, activation: Callable[..., Any]) -> Callable[..., Any]:
        def watched_activation(x: Any) -> Any:
            activated[path] = _fingerprint(x)
            return activation(x)

        return watched_activation

    fused = {
        path: layer.activation
        for path, layer in watched.items()
        if vars(layer).get("activation") and layer.weights and not hasattr(layer, "state_size")
    }
    for path, layer in watched.items():
        layer.call = watch(path, layer.call)
    for path, activation in fused.items():
        watched[path].activation = watch_activation(path, activation)
    network(inputs, training=False)
    for layer in watched.values():
        del layer.call
    for path, activation in fused.items():
        watched[path].activation = activation
    return recorder.values()


def _fingerprint(values: Any) -> Array:
    """Of the first tensor among arguments or outputs; one that is traced has no values."""
    tensor = next((one for one in tree.flatten(values) if hasattr(one, "shape")), None)
    try:
        return UNKNOWN if tensor is None else fingerprint(_numpy(tensor))
    except Exception:  # each backend raises a type of its own
        return UNKNOWN


def _all_layers(network: Any) -> dict[str, Any]:
    return {layer_path(layer.name): layer for layer in network._flatten_layers(include_self=False)}


def _drawn(layer: Any, like: Any, draws: int) -> Array:
    sizes = [min(size, 2) for size in like.shape[1:]]
    return _numpy(layer(ops.ones((draws // prod(sizes), *sizes), like.dtype), training=True))


def _flat(tensors: list[Any]) -> Array:
    return np.concatenate([_numpy(tensor).ravel() for tensor in tensors])


def _numpy(tensor: Any) -> Array:
    array: Array = ops.convert_to_numpy(tensor)
    return array
