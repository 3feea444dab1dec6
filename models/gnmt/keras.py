"""GNMT in Keras; pytorch.py is its twin."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from models.gnmt.spec import NEVER, RESIDUAL_FROM, Spec
from models.lstms import keras as lstms
from models.transfer import layer_name


class GNMT(keras.Model):  # type: ignore[misc]
    """(source (n, S), lengths (n,), target (n, T)) -> logits (n · T, vocabulary)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = layers.Embedding(spec.vocabulary, spec.width, name="embedding")
        both_ways = layers.Bidirectional(_lstm(spec), "concat", name=layer_name("encoder.0"))
        self.encoder = [
            both_ways,
            *(_lstm(spec, f"encoder.{index}") for index in range(1, spec.layers)),
        ]
        self.decoder = [_lstm(spec, f"decoder.{index}") for index in range(spec.layers)]
        self.encoder_dropout = [
            _dropout(spec, f"encoder_dropout.{index}") for index in range(spec.layers)
        ]
        self.decoder_dropout = [
            _dropout(spec, f"decoder_dropout.{index}") for index in range(spec.layers)
        ]
        self.query = layers.Dense(spec.width, use_bias=False, name="query")
        self.key = layers.Dense(spec.width, use_bias=False, name="key")
        self.score = layers.Dense(1, use_bias=False, name="score")
        self.words = layers.Dense(spec.vocabulary, name="words")

    def build(self, input_shape: Any = None) -> None:
        self.embedding.build((None, None))
        for side, inputs in self.spec.inputs.items():
            for layer, size in zip(getattr(self, side), inputs, strict=True):
                layer.build((None, None, size))
        for layer in (self.query, self.key, self.score, self.words):
            layer.build((None, None, self.spec.width))
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        source, lengths, target = inputs
        there = ops.arange(ops.shape(source)[1], dtype="int32") < lengths[:, None]
        x = self._decoded(target, self._encoded(source, there, training), there, training)
        return ops.reshape(self.words(x), (-1, self.spec.vocabulary))

    def _encoded(self, source: Any, there: Any, training: bool) -> Any:
        x = self.encoder_dropout[0](self.embedding(source), training=training)
        x = self._layer(self.encoder[0], x, there, training=training)
        for index in range(1, len(self.encoder)):
            given = self.encoder_dropout[index](x, training=training)
            found = self._layer(self.encoder[index], given, training=training)
            x = found + x if index >= RESIDUAL_FROM else found
        return x

    def _decoded(self, target: Any, memory: Any, there: Any, training: bool) -> Any:
        given = self.decoder_dropout[0](self.embedding(target), training=training)
        x = self._layer(self.decoder[0], given, training=training)
        context = self._attended(x, memory, there)
        for index in range(1, len(self.decoder)):
            given = ops.concatenate(
                [self.decoder_dropout[index](x, training=training), context], axis=2
            )
            found = self._layer(self.decoder[index], given, training=training)
            x = found + x if index >= RESIDUAL_FROM else found
        return x

    def _layer(self, layer: Any, given: Any, there: Any = None, *, training: bool) -> Any:
        return lstms.outputs(self.spec.lstm, layer, given, there, training=training)

    def _attended(self, asking: Any, memory: Any, there: Any) -> Any:
        """(n, T, width): for each word that asks, the memory's mean weighted by what fits."""
        hidden = ops.tanh(
            ops.expand_dims(self.query(asking), 2) + ops.expand_dims(self.key(memory), 1)
        )
        scores = ops.where(ops.expand_dims(there, 1), ops.squeeze(self.score(hidden), 3), NEVER)
        return ops.matmul(ops.softmax(scores, axis=2), memory)


def build(spec: Spec) -> keras.Model:
    network = GNMT(spec)
    network.build()
    return network


def _lstm(spec: Spec, path: str = "") -> Any:
    return layers.LSTM(spec.width, return_sequences=True, name=layer_name(path) or None)


def _dropout(spec: Spec, path: str) -> Any:
    return layers.Dropout(spec.dropout, name=layer_name(path))
