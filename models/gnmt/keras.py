"""GNMT in Keras; pytorch.py is its twin."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from models.gnmt.spec import RESIDUAL_FROM, Spec
from models.layers import NEVER
from models.layers.keras import built, mask
from models.lstms import keras as lstms
from models.transfer import layer_name


class GNMT(keras.Model):  # type: ignore[misc]
    """(source (n, S), lengths (n,), target (n, T)) -> logits (n · T, vocabulary)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        embedding = layers.Embedding(spec.vocabulary, spec.width, name="embedding")
        self.embedding = built(embedding, None, None)
        self.encoder, self.encoder_dropout = self._side("encoder")
        self.decoder, self.decoder_dropout = self._side("decoder")
        self.query, self.key, self.score = (
            built(layers.Dense(size, use_bias=False, name=name), None, None, spec.width)
            for name, size in {"query": spec.width, "key": spec.width, "score": 1}.items()
        )
        self.words = built(layers.Dense(spec.vocabulary, name="words"), None, None, spec.width)
        self.built = True

    def _side(self, side: str) -> tuple[list[Any], list[Any]]:
        lstms, dropouts = [], []
        for index, size in enumerate(self.spec.inputs[side]):
            name = layer_name(f"{side}.{index}")
            layer = layers.LSTM(self.spec.width, return_sequences=True, name=name)
            if (side, index) == ("encoder", 0):
                layer = layers.LSTM(self.spec.width, return_sequences=True)
                layer = layers.Bidirectional(layer, "concat", name=name)
            lstms.append(built(layer, None, None, size))
            name = layer_name(f"{side}_dropout.{index}")
            dropouts.append(layers.Dropout(self.spec.dropout, name=name))
        return lstms, dropouts

    def call(self, inputs: Any, training: bool = False) -> Any:
        source, lengths, target = inputs
        inside = mask(lengths, ops.shape(source)[1])
        memory = self._encode(source, inside, training)
        x = self._decode(target, memory, inside, training)
        return ops.reshape(self.words(x), (-1, self.spec.vocabulary))

    def _encode(self, source: Any, inside: Any, training: bool) -> Any:
        x = self.encoder_dropout[0](self.embedding(source), training=training)
        x = self._layer(self.encoder[0], x, inside, training=training)
        for index in range(1, len(self.encoder)):
            dropped = self.encoder_dropout[index](x, training=training)
            output = self._layer(self.encoder[index], dropped, training=training)
            x = output + x if index >= RESIDUAL_FROM else output
        return x

    def _decode(self, target: Any, memory: Any, inside: Any, training: bool) -> Any:
        x = self.decoder_dropout[0](self.embedding(target), training=training)
        x = self._layer(self.decoder[0], x, training=training)
        context = self._attend(x, memory, inside)
        for index in range(1, len(self.decoder)):
            dropped = self.decoder_dropout[index](x, training=training)
            both = ops.concatenate([dropped, context], axis=2)
            output = self._layer(self.decoder[index], both, training=training)
            x = output + x if index >= RESIDUAL_FROM else output
        return x

    def _layer(self, layer: Any, steps: Any, inside: Any = None, *, training: bool) -> Any:
        return lstms.outputs(self.spec.lstm, layer, steps, inside, training=training)

    def _attend(self, x: Any, memory: Any, inside: Any) -> Any:
        """Return the memory's mean for each word, weighted by what fits, (n, T, width)."""
        hidden = ops.expand_dims(self.query(x), 2) + ops.expand_dims(self.key(memory), 1)
        scores = ops.squeeze(self.score(ops.tanh(hidden)), 3)
        scores = ops.where(ops.expand_dims(inside, 1), scores, NEVER)
        return ops.matmul(ops.softmax(scores, axis=2), memory)


build = GNMT
