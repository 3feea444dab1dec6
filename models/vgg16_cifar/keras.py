"""VGG-16 for CIFAR in Keras, on any of its backends; pytorch.py reads in parallel."""

from __future__ import annotations

import keras
from keras import layers

from models.layers.keras import convolution, dropout, images, linear, max_pool, network, norm
from models.vgg16_cifar.spec import Spec


def build(spec: Spec) -> keras.Model:
    """call(images (n, height, width, 3), normalised) -> (n, classes)."""
    first, later, hidden = spec.dropouts
    inputs = x = images()
    for stage, (count, channels) in enumerate(spec.stages, 1):
        for number in range(1, count + 1):
            x = convolution(x, channels, 3, f"conv{stage}_{number}", padding=1)
            x = layers.ReLU()(norm(x, f"norm{stage}_{number}"))
            if number < count:
                x = dropout(x, first if stage == 1 else later, f"drop{stage}_{number}")
        x = max_pool(x, 2, strides=2)
    x = layers.GlobalAveragePooling2D()(x)
    x = linear(dropout(x, hidden, "hidden_drop"), spec.hidden, "hidden")
    x = layers.ReLU()(norm(x, "hidden_norm"))
    x = dropout(x, hidden, "classifier_drop")
    return network(inputs, linear(x, spec.classes, "classifier"), "vgg16_cifar")
