"""vision_transformer in Keras, for TensorFlow, PyTorch and JAX; pytorch.py reads in parallel."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops
from models.vision_transformer.spec import Spec

from models.layers.keras import (
    attention,
    convolution,
    gelu,
    images,
    layer_norm,
    linear,
    network,
    position_embedding,
    scale,
)
from models.transfer import AS_IS, Arrays, weight_rule


class ClassToken(layers.Layer):
    """Puts a learned token in front of (n, tokens, width)."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.token = self.add_weight(shape=(1, 1, input_shape[-1]), name="token")

    def call(self, x: Any) -> Any:
        token = ops.broadcast_to(self.token, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([token, x], 1)


@weight_rule(ClassToken)
def _class_token(layer: ClassToken) -> Arrays:
    yield "", layer.token, AS_IS


def build(spec: Spec) -> keras.Model:
    """call(images (n, height, width, 3)) -> (n, classes). A layer's name is its path in PyTorch."""
    inputs = images(spec.channels)
    x = convolution(inputs, spec.width, spec.patch, "patches", strides=spec.patch, bias=True)
    x = ClassToken(name="class_token")(layers.Reshape((-1, spec.width))(x))
    x = position_embedding(x, spec.tokens, "positions")
    for index in range(spec.blocks):
        x = _block(x, spec, f"blocks.{index}")
    x = layer_norm(x, "norm")
    return network(inputs, linear(x[:, 0], spec.classes, "classifier"), "vision_transformer")


def _block(x: Any, spec: Spec, path: str) -> Any:
    y = layer_norm(x, f"{path}.norm1")
    y = attention(y, spec.heads, f"{path}.attention", dropout=spec.dropout)
    x = x + scale(y, f"{path}.scale")
    between = gelu(linear(layer_norm(x, f"{path}.norm2"), 4 * spec.width, f"{path}.linear1"))
    return x + linear(between, spec.width, f"{path}.linear2")
