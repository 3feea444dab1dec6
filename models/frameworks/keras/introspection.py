"""Calls of Keras' layers, observed around `call`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from keras import activations, layers, ops, tree

from models.contract import Array
from models.frameworks.introspection import Call
from models.transfer import layer_path

RATE = "rate"
to_numpy = ops.convert_to_numpy


def _layers(network: Any) -> dict[str, Any]:
    return {layer_path(layer.name): layer for layer in network._flatten_layers(include_self=False)}


def droppers(network: Any) -> dict[str, Any]:
    """Return the layers that drop in training.

    Returns:
        By their paths in PyTorch.
    """
    by_path = _layers(network).items()
    return {path: layer for path, layer in by_path if isinstance(layer, layers.Dropout)}


def observe(network: Any, inputs: Any, observer: Callable[[Call], None], *, training: bool) -> None:

    def around(path: str, layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        def observed(*arguments: Any, **named: Any) -> Any:
            outputs = call(*arguments, **named)
            first = arguments[0] if arguments else None
            observer(Call(path, layer, first, outputs, bool(named.get("training"))))
            return outputs

        return observed

    by_path = _layers(network)
    for path, layer in by_path.items():
        layer.call = around(path, layer, layer.call)
    network(inputs, training=training)
    for layer in by_path.values():
        del layer.call


def draw(layer: Any, shape: tuple[int, ...], like: Any) -> Array:
    """Return the outputs of a layer for ones, in training mode.

    Args:
        layer: Layer that drops.
        shape: Of the ones.
        like: Tensor of their type.
    """
    return to_numpy(layer(ops.ones(shape, like.dtype), training=True))


def comparable_output(call: Call) -> Array | None:
    """Return an eager output, None behind an activation in a layer with weights.

    PyTorch's sibling returns the values before the activation.
    """
    activation = vars(call.layer).get("activation", activations.linear)
    if not call.layer.weights or activation is activations.linear:
        with suppress(Exception):  # each backend raises its own error for a traced tensor
            return to_numpy(tree.flatten(call.outputs)[0])
    return None
