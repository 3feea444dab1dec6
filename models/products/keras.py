"""Products of square matrices in Keras; pytorch.py is its twin."""

import keras

from models.products import LAYERS


def build(width: int) -> keras.Model:
    inputs = outputs = keras.Input((width,))
    square = keras.layers.Dense(width, use_bias=False)
    for _ in range(LAYERS):
        outputs = square(outputs)
    return keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(outputs))
