"""The caption decoder in Keras, on any of its backends; pytorch.py is its twin."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from models.caption_decoder.spec import CaptionDecoderSpec

State = tuple[Any, Any, Any]


class CaptionDecoder(keras.Model):  # type: ignore[misc]
    """call((features (R, F), tokens (R, T), positions (N,))) -> logits (N, V).

    The image vector is the first LSTM step, the tokens follow. positions are flat indices r·T + t of the states after token t
    of caption r, so one row per prefix and one row per caption are the same call. Tokens are right-padded: the LSTM is causal,
    a state at a real token sees no padding.
    """

    def __init__(self, spec: CaptionDecoderSpec) -> None:
        super().__init__(name="caption_decoder")
        self.spec = spec
        self.image = layers.Dense(spec.width, activation="relu", name="image")
        self.embedding = layers.Embedding(spec.vocabulary, spec.width, name="embedding")
        self.lstm = layers.LSTM(spec.width, return_sequences=True, name="lstm")
        self.merge = layers.Dense(spec.hidden, activation="relu", name="merge")
        self.words = layers.Dense(spec.vocabulary, name="words")
        self.state_dropout = layers.Dropout(spec.dropout, name="state_dropout")
        self.merged_dropout = layers.Dropout(spec.dropout, name="merged_dropout")

    def build(self, input_shape: Any = None) -> None:  # noqa: ARG002 - the spec says all sizes
        spec = self.spec
        self.image.build((None, spec.features))
        self.embedding.build((None, None))
        self.lstm.build((None, None, spec.width))
        self.merge.build((None, spec.width))
        self.words.build((None, spec.hidden))
        self.built = True

    def call(self, inputs: tuple[Any, Any, Any], training: bool = False) -> Any:
        features, tokens, positions = inputs
        image = self.image(features)
        steps = ops.concatenate([ops.expand_dims(image, 1), self.embedding(tokens)], axis=1)
        states = ops.reshape(self.lstm(steps, training=training)[:, 1:], (-1, self.spec.width))
        rows = positions // ops.shape(tokens)[1]
        return self._logits(ops.take(states, positions, axis=0), ops.take(image, rows, axis=0), training)

    def begin(self, features: Any) -> State:
        """The state after the image step: (image vector, h, c), each (n, width)."""
        image = self.image(features)
        zeros = ops.zeros_like(image)
        return image, *self._cell(image, zeros, zeros)

    def advance(self, state: State, tokens: Any) -> tuple[Any, State]:
        """One word further: tokens (n,) -> logits (n, V) and the state after them."""
        image, h, c = state
        h, c = self._cell(self.embedding(tokens), h, c)
        return self._logits(h, image, training=False), (image, h, c)

    def _cell(self, step: Any, h: Any, c: Any) -> tuple[Any, Any]:
        _, (h, c) = self.lstm.cell(step, [h, c], training=False)
        return h, c

    def _logits(self, states: Any, image: Any, training: bool) -> Any:
        merged = self.merge(self.state_dropout(states, training=training) + image)
        return self.words(self.merged_dropout(merged, training=training))


def build(spec: CaptionDecoderSpec) -> keras.Model:
    network = CaptionDecoder(spec)
    network.build()
    return network
