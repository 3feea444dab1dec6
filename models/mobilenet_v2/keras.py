"""MobileNetV2 in Keras, on any of its backends: the mirror of torchvision's."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from models.layers.keras import convolution, depthwise, dropout, images, linear, network, norm
from models.mobilenet_v2.spec import Spec, Unit


def build(spec: Spec) -> keras.Model:
    """call(images (n, height, width, 3), normalised) -> (n, classes)."""
    inputs = images()
    x = convolution(inputs, spec.stem, 3, "features.0.0", strides=2, padding=1)
    x = _relu6(norm(x, "features.0.1"))
    units = list(spec.units())
    for unit in units:
        x = _unit(x, unit)
    last = f"features.{len(units) + 1}"
    x = _relu6(norm(convolution(x, spec.last, 1, f"{last}.0"), f"{last}.1"))
    x = layers.GlobalAveragePooling2D()(x)
    x = dropout(x, spec.dropout, "classifier.0")
    return network(inputs, linear(x, spec.classes, "classifier.1"), "mobilenet_v2")


def _unit(x: Any, unit: Unit) -> Any:
    shortcut, path, part = x, f"{unit.path}.conv", unit.depthwise
    if part:
        x = _relu6(norm(convolution(x, unit.hidden, 1, f"{path}.0.0"), f"{path}.0.1"))
    x = _relu6(norm(depthwise(x, 3, f"{path}.{part}.0", strides=unit.strides), f"{path}.{part}.1"))
    x = norm(convolution(x, unit.outputs, 1, f"{path}.{part + 1}"), f"{path}.{part + 2}")
    return layers.Add()([shortcut, x]) if unit.strides == 1 and unit.inputs == unit.outputs else x


def _relu6(x: Any) -> Any:
    return layers.ReLU(max_value=6)(x)
