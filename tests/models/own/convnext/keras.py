"""convnext in Keras, for TensorFlow, PyTorch and JAX; pytorch.py reads in parallel."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers
from models.convnext.spec import Spec

from models.layers.keras import (
    convolution,
    depthwise,
    gelu,
    images,
    layer_norm,
    linear,
    network,
    scale,
)


def build(spec: Spec) -> keras.Model:
    """call(images (n, height, width, 3)) -> (n, classes). A layer's name is its path in PyTorch."""
    inputs = x = images(spec.channels)
    for stage, (width, depth) in enumerate(zip(spec.widths, spec.depths, strict=True)):
        path = f"stages.{stage}"
        x = _norm(x, f"{path}.norm") if stage else x
        x = convolution(x, width, 2, f"{path}.reduction", strides=2, bias=True)
        x = x if stage else _norm(x, f"{path}.norm")
        for index in range(depth):
            x = _block(x, width, f"{path}.blocks.{index}")
    x = _norm(layers.GlobalAveragePooling2D()(x), "norm")
    return network(inputs, linear(x, spec.classes, "classifier"), "convnext")


def _block(x: Any, width: int, path: str) -> Any:
    y = _norm(depthwise(x, 7, f"{path}.depthwise", bias=True), f"{path}.norm")
    y = linear(gelu(linear(y, 4 * width, f"{path}.linear1")), width, f"{path}.linear2")
    return x + scale(y, f"{path}.scale")


def _norm(x: Any, path: str) -> Any:
    return layer_norm(x, path, epsilon=1e-6)
