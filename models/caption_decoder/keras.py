"""Caption decoder in Keras, on any of its backends; pytorch.py is its twin."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from models.caption_decoder.spec import CaptionDecoderSpec, shapes
from models.layers.keras import Sequences
from models.lstms import keras as lstms

State = tuple[Any, Any, Any]


class CaptionDecoder(Sequences):
    """call((features (R, F), tokens (R, T), positions (N,))) -> logits (N, V).

    The image vector is the first LSTM step, the tokens follow. positions are flat indices r·T + t
    of the states after token t of caption r, so one row per prefix and one row per caption are the
    same call. Tokens are right-padded: the LSTM is causal, a state at a real token sees no padding.
    """

    def __init__(self, spec: CaptionDecoderSpec) -> None:
        super().__init__(spec, shapes(spec), ("state_dropout", "merged_dropout"))

    def call(self, inputs: tuple[Any, Any, Any], training: bool = False) -> Any:
        features, tokens, positions = inputs
        image = ops.relu(self.parts["image"](features))
        steps = ops.concatenate(
            [ops.expand_dims(image, 1), self.parts["embedding"](tokens)], axis=1
        )
        outputs = lstms.outputs(self.spec.lstm, self.parts["lstm"], steps, training=training)
        states = ops.reshape(outputs[:, 1:], (-1, self.spec.width))
        states = ops.take(states, positions, axis=0)
        image = ops.take(image, positions // ops.shape(tokens)[1], axis=0)
        return self._logits(states, image, training)

    def begin(self, features: Any) -> State:
        """Return the state after the image step: (image vector, h, c), each (n, width)."""
        image = ops.relu(self.parts["image"](features))
        zeros = ops.zeros_like(image)
        return image, *self._cell(image, zeros, zeros)

    def advance(self, state: State, tokens: Any) -> tuple[Any, State]:
        """Advance by one word: tokens (n,) -> logits (n, V) and the state after them."""
        image, h, c = state
        h, c = self._cell(self.parts["embedding"](tokens), h, c)
        return self._logits(h, image, training=False), (image, h, c)

    def _cell(self, step: Any, h: Any, c: Any) -> tuple[Any, Any]:
        _, (h, c) = self.parts["lstm"].cell(step, [h, c], training=False)
        return h, c

    def _logits(self, states: Any, image: Any, training: bool) -> Any:
        dropped = self.drop("state_dropout", states, training)
        merged = ops.relu(self.parts["merge"](dropped + image))
        return self.parts["words"](self.drop("merged_dropout", merged, training))


build = CaptionDecoder


def search(network: Any, features: Any, *, start: int, end: int, words: int, beams: int) -> Any:
    """Return tokens, int32 (n, words), by greedy or beam search in a loop that is compiled once."""
    if beams == 1:
        return _greedy(network, features, start=start, end=end, words=words)
    return _beam(network, features, start=start, end=end, words=words, beams=beams)


def _greedy(network: Any, features: Any, *, start: int, end: int, words: int) -> Any:
    """Return the likeliest token after those before it; a finished caption goes on with `end`."""

    def body(word: Any, carried: Any) -> Any:
        captions, tokens, finished, state = carried
        logits, state = network.advance(state, tokens)
        tokens = ops.where(finished, end, ops.cast(ops.argmax(logits, axis=1), "int32"))
        captions = ops.where(_column(words, word), ops.expand_dims(tokens, 1), captions)
        return captions, tokens, ops.equal(tokens, end), state

    n = ops.shape(features)[0]
    captions = ops.full((n, words), end, dtype="int32")
    tokens = ops.full((n,), start, dtype="int32")
    finished = ops.zeros((n,), dtype="bool")
    first = (captions, tokens, finished, network.begin(features))
    return ops.fori_loop(0, words, body, first)[0]


def _beam(network: Any, features: Any, *, start: int, end: int, words: int, beams: int) -> Any:
    """Return each image's best beam, over rows n·beams + beam.

    A finished beam goes on with `end` for free.
    """
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
    # All beams begin alike: only the first has children.
    first_beam = ops.equal(ops.arange(beams), 0)
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
    """Return the mask of one column, (1, words), for a write by `where`."""
    return ops.expand_dims(ops.equal(ops.arange(words, dtype="int32"), word), 0)
