"""LeNet-5 in Keras, on any of its backends; pytorch.py reads in parallel."""

from __future__ import annotations

import keras
from keras import layers

from models.layers.keras import convolution, flatten, linear, max_pool, network
from models.lenet.spec import Spec


def build(spec: Spec) -> keras.Model:
    """call(images (n, 28, 28, 1)) -> (n, classes)."""
    inputs = keras.Input((28, 28, 1))
    x = layers.ReLU()(convolution(inputs, 6, 5, "conv1", padding=2, bias=True))
    x = max_pool(x, 2, strides=2)
    x = layers.ReLU()(convolution(x, 16, 5, "conv2", bias=True))
    x = flatten(max_pool(x, 2, strides=2))
    x = layers.ReLU()(linear(x, 120, "linear1"))
    x = layers.ReLU()(linear(x, 84, "linear2"))
    return network(inputs, linear(x, spec.classes, "linear3"), "lenet")
