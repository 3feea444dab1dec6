"""written_earlier in Keras, for TensorFlow, PyTorch and JAX; pytorch.py reads in parallel."""

from __future__ import annotations

import keras
from keras import layers
from models.written_earlier.spec import Spec

from models.layers.keras import convolution, images, linear, max_pool, network


def build(spec: Spec) -> keras.Model:
    """call(images (n, height, width, 3)) -> (n, classes). A layer's name is its path in PyTorch."""
    inputs = images(spec.channels)
    x = layers.ReLU()(convolution(inputs, spec.width, 3, "conv1", padding=1, bias=True))
    x = max_pool(x, 2, strides=2)
    x = layers.ReLU()(convolution(x, 2 * spec.width, 3, "conv2", padding=1, bias=True))
    x = max_pool(x, 2, strides=2)
    x = layers.GlobalAveragePooling2D()(x)
    return network(inputs, linear(x, spec.classes, "classifier"), "written_earlier")
