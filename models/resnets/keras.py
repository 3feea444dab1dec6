"""A ResNet in Keras, on any of its backends: the mirror of torchvision's."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from models.layers.keras import convolution, images, linear, max_pool, network, norm
from models.resnets.sizes import STEM, ResNetSpec, Unit


def build(spec: ResNetSpec) -> keras.Model:
    """call(images (n, height, width, 3), normalised) -> (n, classes)."""
    inputs = images()
    x = convolution(inputs, STEM, 7, "conv1", strides=2, padding=3)
    x = layers.ReLU()(norm(x, "bn1"))
    x = max_pool(x, 3, strides=2, padding=1)
    for unit in spec.units():
        x = _unit(x, unit)
    x = layers.GlobalAveragePooling2D()(x)
    return network(inputs, linear(x, spec.classes, "fc"), "resnet")


def _unit(x: Any, unit: Unit) -> Any:
    shortcut = x
    for number, (filters, size, strides) in enumerate(unit.convolutions, 1):
        x = convolution(
            x, filters, size, f"{unit.path}.conv{number}", strides=strides, padding=size // 2
        )
        x = norm(x, f"{unit.path}.bn{number}")
        if number < len(unit.convolutions):
            x = layers.ReLU()(x)
    if unit.projected:
        shortcut = convolution(
            shortcut, unit.outputs, 1, f"{unit.path}.downsample.0", strides=unit.strides
        )
        shortcut = norm(shortcut, f"{unit.path}.downsample.1")
    return layers.ReLU()(layers.Add()([x, shortcut]))
