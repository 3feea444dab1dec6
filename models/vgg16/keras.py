"""VGG-16 in Keras, on any of its backends: the mirror of torchvision's."""

from __future__ import annotations

import keras
from keras import layers

from models.layers.keras import (
    AdaptiveAverage,
    convolution,
    dropout,
    flatten,
    images,
    linear,
    max_pool,
    network,
)
from models.vgg16.spec import POOLED, Spec


def build(spec: Spec) -> keras.Model:
    """call(images (n, height, width, 3), normalised) -> (n, classes)."""
    inputs = x = images()
    for stage in spec.convolutions():
        for path, channels in stage:
            x = layers.ReLU()(convolution(x, channels, 3, path, padding=1, bias=True))
        x = max_pool(x, 2, strides=2)
    x = flatten(AdaptiveAverage(POOLED)(x))
    for at in (0, 3):
        x = layers.ReLU()(linear(x, spec.hidden, f"classifier.{at}"))
        x = dropout(x, spec.dropout, f"classifier.{at + 2}")
    return network(inputs, linear(x, spec.classes, "classifier.6"), "vgg16")
