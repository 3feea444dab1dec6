"""The caption decoder in Keras, on any of its backends; pytorch.py is its twin."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from models.caption_decoder.spec import CaptionDecoderSpec
from models.lstms import keras as lstms

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

    def build(self, input_shape: Any = None) -> None:
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
        said = lstms.outputs(self.spec.lstm, self.lstm, steps, training=training)
        states = ops.reshape(said[:, 1:], (-1, self.spec.width))
        rows = positions // ops.shape(tokens)[1]
        return self._logits(
            ops.take(states, positions, axis=0), ops.take(image, rows, axis=0), training
        )

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


def search(network: Any, features: Any, *, start: int, end: int, words: int, beams: int) -> Any:
    """(n, words) int32 tokens by greedy or beam search: one LSTM step a word, in a loop that a compiler sees once."""
    if beams == 1:
        return _greedy(network, features, start=start, end=end, words=words)
    return _beam(network, features, start=start, end=end, words=words, beams=beams)


def _greedy(network: Any, features: Any, *, start: int, end: int, words: int) -> Any:
    """(n, words) tokens, each the likeliest after those before it; a finished caption goes on with `end`."""

    def body(word: Any, carried: Any) -> Any:
        captions, tokens, finished, state = carried
        logits, state = network.advance(state, tokens)
        tokens = ops.where(finished, end, ops.cast(ops.argmax(logits, axis=1), "int32"))
        captions = ops.where(_column(words, word), ops.expand_dims(tokens, 1), captions)
        return captions, tokens, ops.equal(tokens, end), state

    n = ops.shape(features)[0]
    captions, tokens = (
        ops.full((n, words), end, dtype="int32"),
        ops.full((n,), start, dtype="int32"),
    )
    return ops.fori_loop(
        0, words, body, (captions, tokens, ops.zeros((n,), dtype="bool"), network.begin(features))
    )[0]


def _beam(network: Any, features: Any, *, start: int, end: int, words: int, beams: int) -> Any:
    """(n, words) tokens of each image's best beam, over rows n·beams + beam; a finished beam goes on with `end` for free."""
    vocabulary = network.spec.vocabulary
    n = ops.shape(features)[0]
    first_row = ops.expand_dims(ops.arange(n, dtype="int32") * beams, 1)
    zero, never = ops.cast(0, features.dtype), ops.cast(-np.inf, features.dtype)
    only_end = ops.where(ops.expand_dims(ops.equal(ops.arange(vocabulary), end), 0), zero, never)

    def body(word: Any, carried: Any) -> Any:
        captions, tokens, finished, scores, state = carried
        logits, state = network.advance(state, tokens)
        steps = ops.where(ops.expand_dims(finished, 1), only_end, ops.log_softmax(logits, axis=1))
        totals = ops.expand_dims(scores, 2) + ops.reshape(steps, (-1, beams, vocabulary))
        scores, best = ops.top_k(ops.reshape(totals, (-1, beams * vocabulary)), beams)
        best = ops.cast(best, "int32")
        parents = ops.reshape(first_row + best // vocabulary, (-1,))
        tokens = ops.reshape(best % vocabulary, (-1,))
        state = tuple(ops.take(tensor, parents, axis=0) for tensor in state)
        captions = ops.where(
            _column(words, word), ops.expand_dims(tokens, 1), ops.take(captions, parents, axis=0)
        )
        return captions, tokens, ops.equal(tokens, end), scores, state

    rows = n * beams
    first_beam = ops.equal(
        ops.arange(beams), 0
    )  # all beams begin alike: let only the first bear children
    carried = (
        ops.full((rows, words), end, dtype="int32"),
        ops.full((rows,), start, dtype="int32"),
        ops.zeros((rows,), dtype="bool"),
        ops.broadcast_to(ops.where(first_beam, zero, never), (n, beams)),
        tuple(ops.repeat(tensor, beams, axis=0) for tensor in network.begin(features)),
    )
    captions = ops.fori_loop(0, words, body, carried)[0]
    return ops.reshape(captions, (-1, beams, words))[:, 0]


def _column(words: int, word: Any) -> Any:
    """(1, words) mask of one column: a write by `where`, as every backend compiles it."""
    return ops.expand_dims(ops.equal(ops.arange(words, dtype="int32"), word), 0)
