"""Keras' single steps: the framework and the network, and no part of this tool.

Source: keras.io/api/models/model_training_apis, `train_on_batch` and `predict_on_batch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from models.contract import Array, Weights
from models.transfer import entries, to_keras


class Plain:
    def __init__(
        self, network: Any, weights: Weights, images: Array, labels: Array, _: str
    ) -> None:
        # images: float32 (n, height, width, channels); labels: int32 (n,)
        to_keras(entries(network), weights)
        self._model = network
        self._images, self._labels = (
            keras.ops.convert_to_tensor(images),
            keras.ops.convert_to_tensor(labels),
        )

    def requests(self) -> Callable[[], Array]:
        model, images = self._model, self._images
        return lambda: model.predict_on_batch(images)

    def steps(self, learning_rate: float) -> Callable[[], float]:
        model, images, labels = self._model, self._images, self._labels
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(learning_rate), loss=loss)
        return lambda: float(model.train_on_batch(images, labels))
