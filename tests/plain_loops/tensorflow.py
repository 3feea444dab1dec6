"""Loop of TensorFlow's tutorials: the framework and the network, and no part of this tool.

Without autograph, as in the adapter: it would leave files in the temporary folder.

Source: "TensorFlow 2 quickstart for experts"; tensorflow.org/tutorials.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from models.contract import Array, Weights
from models.transfer import entries, to_keras


class Plain:
    def __init__(
        self, network: Any, weights: Weights, images: Array, labels: Array, _: str
    ) -> None:
        # images: float32 (n, height, width, channels); labels: int32 (n,)
        to_keras(entries(network), weights)
        self._model = network
        self._images, self._labels = tf.constant(images), tf.constant(labels)

    def requests(self) -> Callable[[], Array]:
        model, images = self._model, self._images

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def test_step(images: Any) -> Any:
            return model(images, training=False)

        return lambda: test_step(images).numpy()

    def steps(self, learning_rate: float) -> Callable[[], float]:
        model, images, labels = self._model, self._images, self._labels
        loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = tf.keras.optimizers.Adam(learning_rate)

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def train_step(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                predictions = model(images, training=True)
                loss = loss_object(labels, predictions)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return lambda: float(train_step(images, labels).numpy())
