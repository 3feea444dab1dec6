"""assorted in Keras, with Keras' own layers; pytorch.py reads in parallel."""

from __future__ import annotations

import keras
from keras import layers
from models.assorted.spec import Spec

from models.layers.keras import images, linear, network


def build(spec: Spec) -> keras.Model:
    """call(images (n, height, width, 3)) -> (n, classes). A layer's name is its path in PyTorch."""
    inputs = images(spec.channels)
    x = layers.Conv2DTranspose(spec.width, 3, 2, name="up")(inputs)
    x = layers.GroupNormalization(2, epsilon=1e-5, name="norm")(x)
    x = layers.Reshape((-1, spec.width))(layers.ReLU()(x))
    x = x + layers.MultiHeadAttention(spec.heads, spec.width // spec.heads, name="attention")(x, x)
    x = layers.GRU(spec.width, name="gru")(x)
    return network(inputs, linear(x, spec.classes, "classifier"), "assorted")
