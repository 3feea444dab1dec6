"""Loop of Keras' guide for JAX: the framework and the network, and no part of this tool.

Source: "Writing a training loop from scratch in JAX"; keras.io/guides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np

from models.contract import Array, Weights
from models.transfer import entries, to_keras


class Plain:
    def __init__(
        self, network: Any, weights: Weights, images: Array, labels: Array, _: str
    ) -> None:
        # images: float32 (n, height, width, channels); labels: int32 (n,)
        to_keras(entries(network), weights)
        self._model = network
        self._images, self._labels = jax.numpy.asarray(images), jax.numpy.asarray(labels)

    def requests(self) -> Callable[[], Array]:
        model, images = self._model, self._images
        state = [[at.value for at in group] for group in self._variables()]

        @jax.jit
        def test_step(trainable: Any, others: Any, images: Any) -> Any:
            outputs, _ = model.stateless_call(trainable, others, images, training=False)
            return outputs

        return lambda: np.asarray(test_step(*state, images))

    def steps(self, learning_rate: float) -> Callable[[], float]:
        model, images, labels = self._model, self._images, self._labels
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.Adam(learning_rate)
        optimizer.build(model.trainable_variables)

        def compute_loss(trainable: Any, others: Any, images: Any, labels: Any) -> Any:
            predictions, others = model.stateless_call(trainable, others, images, training=True)
            return loss_object(labels, predictions), others

        differentiate = jax.value_and_grad(compute_loss, has_aux=True)

        @jax.jit
        def train_step(state: Any, images: Any, labels: Any) -> Any:
            trainable, others, slots = state
            (loss, others), gradients = differentiate(trainable, others, images, labels)
            trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
            return loss, (trainable, others, slots)

        groups = (*self._variables(), optimizer.variables)
        state: Any = [[at.value for at in group] for group in groups]

        def step() -> float:
            nonlocal state
            loss, state = train_step(state, images, labels)
            return float(loss)

        return step

    def _variables(self) -> tuple[Any, Any]:
        return self._model.trainable_variables, self._model.non_trainable_variables
