"""Inputs and outputs of layers, observed around `call`: for the parity gate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from keras import activations, layers, ops, tree

from models.contract import Array, DropoutProbe
from models.layer_values import fingerprint
from models.transfer import layer_path

# Receives the path, the layer, its arguments by position and by name, and its outputs.
Observer = Callable[[str, Any, tuple[Any, ...], dict[str, Any], Any], None]


def _layers(network: Any) -> dict[str, Any]:
    return {layer_path(layer.name): layer for layer in network._flatten_layers(include_self=False)}


def _droppers(network: Any) -> dict[str, Any]:
    by_path = _layers(network).items()
    return {path: layer for path, layer in by_path if isinstance(layer, layers.Dropout)}


def drop_nothing(network: Any) -> None:
    for layer in _droppers(network).values():
        layer.rate = 0.0


def dropping(network: Any, inputs: Any, draws: int) -> dict[str, DropoutProbe]:
    droppers, received = _droppers(network), defaultdict[str, list[Any]](list)
    rates = {path: layer.rate for path, layer in droppers.items()}

    def observe(path: str, _: Any, arguments: tuple[Any, ...], named: Any, __: Any) -> None:
        if path in droppers and named.get("training"):
            received[path].append(arguments[0])

    drop_nothing(network)
    _observe(network, inputs, observe, training=True)
    for path, layer in droppers.items():
        layer.rate = rates[path]
    return {
        path: DropoutProbe(
            np.concatenate([ops.convert_to_numpy(tensor).ravel() for tensor in tensors]),
            _draw(droppers[path], tensors[0], draws),
        )
        for path, tensors in received.items()
    }


def layer_values(network: Any, inputs: Any) -> dict[str, Array]:
    """Return fingerprints of eager outputs, without those behind an activation in the layer.

    PyTorch's sibling returns the values before the activation.
    """
    calls = defaultdict[str, list[Array]](list)

    def observe(path: str, layer: Any, _: Any, __: Any, outputs: Any) -> None:
        activation = vars(layer).get("activation", activations.linear)
        if layer.weights and activation is not activations.linear:
            return
        with suppress(Exception):  # each backend raises its own error for a traced tensor
            tensor = tree.flatten(outputs)[0]
            calls[path].append(fingerprint(ops.convert_to_numpy(tensor)))

    _observe(network, inputs, observe, training=False)
    return {path: np.stack(arrays) for path, arrays in calls.items()}


def _observe(network: Any, inputs: Any, observer: Observer, *, training: bool) -> None:
    """Make one pass and call the observer after each call of a layer."""

    def around(path: str, layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        def observed(*arguments: Any, **named: Any) -> Any:
            outputs = call(*arguments, **named)
            observer(path, layer, arguments, named, outputs)
            return outputs

        return observed

    by_path = _layers(network)
    for path, layer in by_path.items():
        layer.call = around(path, layer, layer.call)
    network(inputs, training=training)
    for layer in by_path.values():
        del layer.call


def _draw(layer: Any, like: Any, draws: int) -> Array:
    sizes = [min(size, 2) for size in like.shape[1:]]
    ones = ops.ones((draws // prod(sizes), *sizes), like.dtype)
    array: Array = ops.convert_to_numpy(layer(ones, training=True))
    return array
