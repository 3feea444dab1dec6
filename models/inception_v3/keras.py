"""Inception-V3 in Keras, on any of its backends: the mirror of torchvision's."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

from models.inception_v3.spec import AVERAGE, EPSILON, MAX, MIXED, STEM, Branch, Spec, Unit
from models.layers.keras import (
    average_pool,
    convolution,
    dropout,
    images,
    linear,
    max_pool,
    network,
    norm,
)

# From normalised by ImageNet's means and deviations to (image - 0.5) / 0.5, channel by channel; TensorFlow would read a tuple of
# floats as float32, whatever the policy.
SCALES = np.array((0.229, 0.224, 0.225)) / 0.5
OFFSETS = (np.array((0.485, 0.456, 0.406)) - 0.5) / 0.5


def build(spec: Spec) -> keras.Model:
    """call(images (n, height, width, 3), normalised) -> (n, classes)."""
    inputs = x = images()
    if spec.transform_input:
        x = layers.Rescaling(SCALES, OFFSETS)(x)
    for unit in STEM:
        x = _unit(x, unit, unit.name, spec) if isinstance(unit, Unit) else max_pool(x, 3, strides=2)
    for name, branches in MIXED.items():
        x = layers.Concatenate()(
            [out for branch in branches for out in _branch(x, branch, name, spec)]
        )
    x = layers.GlobalAveragePooling2D()(x)
    return network(
        inputs, linear(dropout(x, spec.dropout, "dropout"), spec.classes, "fc"), "inception_v3"
    )


def _branch(x: Any, branch: Branch, name: str, spec: Spec) -> list[Any]:
    if branch.pooling == MAX:
        x = max_pool(x, 3, strides=2)
    if branch.pooling == AVERAGE:
        x = average_pool(x, 3, strides=1, padding=1)
    for unit in branch.units:
        x = _unit(x, unit, f"{name}.{unit.name}", spec)
    return [_unit(x, unit, f"{name}.{unit.name}", spec) for unit in branch.fork] or [x]


def _unit(x: Any, unit: Unit, path: str, spec: Spec) -> Any:
    x = convolution(
        x, spec.width(unit), unit.size, f"{path}.conv", strides=unit.strides, padding=unit.padding
    )
    return layers.ReLU()(norm(x, f"{path}.bn", epsilon=EPSILON))
