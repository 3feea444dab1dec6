"""Calibrated work in Keras' layers, on any backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.contract import Array


def networks(
    weights: Mapping[str, tuple[Array, ...]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Return networks of one operator each: `matmul`, `convolution`, `lstm`.

    Args:
        weights: by name; kernels HWIO, gates i f g o.
        shapes: of the inputs, with their rows.
    """
    from keras import Input, Sequential, layers

    (product,), (kernel,), (_, recurrent) = (
        weights[name] for name in ("matmul", "convolution", "lstm")
    )
    made = {
        "matmul": layers.Dense(product.shape[1], use_bias=False),
        "convolution": layers.Conv2D(
            kernel.shape[3], kernel.shape[:2], padding="same", use_bias=False
        ),
        "lstm": layers.LSTM(recurrent.shape[0], use_bias=False, return_sequences=True),
    }
    networks = {}
    for name, layer in made.items():
        networks[name] = Sequential([Input(batch_shape=shapes[name], dtype="float32"), layer])
        layer.set_weights(list(weights[name]))
        networks[name].compile()
    return networks


def output_type(network: Any, inputs: Array) -> str:
    """Return the type of a network's outputs before they are widened."""
    from keras import backend

    return str(backend.standardize_dtype(network(inputs).dtype))
