"""Tacotron 2 in Keras; pytorch.py is its twin."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from models.layers import NEVER
from models.layers.keras import batch_norm, built, mask
from models.layers.keras import scan as loop
from models.lstms import keras as lstms
from models.tacotron2.spec import CONVOLUTIONS, KERNEL, Spec
from models.transfer import layer_name


class Tacotron2(keras.Model):  # type: ignore[misc]
    """(characters (n, C), their number (n,), frames before (n, F, bins), frames (n,)) -> outputs.

    The last axis of the outputs (n, F, 2 · bins + 1) holds a frame, the corrected frame, and the
    logit of its being the last.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        embedding = layers.Embedding(spec.characters, spec.width, name="embedding")
        self.embedding = built(embedding, None, None)
        sizes = [(spec.width, spec.width)] * CONVOLUTIONS
        self.convolutions, self.norms, self.dropouts = _convolutions(spec, sizes, "convolutions")
        encoder = layers.LSTM(spec.width // 2, return_sequences=True)
        encoder = layers.Bidirectional(encoder, "concat", name="encoder")
        self.encoder = built(encoder, None, None, spec.width)
        self.prenet = [
            _linear(f"prenet.{index}", spec.prenet, size)
            for index, size in enumerate((spec.bins, spec.prenet))
        ]
        self.prenet_dropouts = [
            layers.Dropout(spec.dropout, name=layer_name(f"prenet_dropouts.{index}"))
            for index in range(2)
        ]
        self.asking, self.speaking = (
            built(layers.LSTMCell(width, name=name), None, inputs)
            for name, (inputs, width) in spec.lstms.items()
        )
        self.query = _linear("query", spec.attention, spec.decoder)
        self.key = _linear("key", spec.attention, spec.width)
        options = {"padding": "same", "use_bias": False, "name": "place"}
        self.place = built(layers.Conv1D(spec.filters, spec.reach, **options), None, None, 1)
        self.where = _linear("where", spec.attention, spec.filters)
        self.score = _linear("score", 1, spec.attention)
        self.frame, self.stop = (
            built(layers.Dense(size, name=name), None, None, spec.decoder + spec.width)
            for name, size in {"frame": spec.bins, "stop": 1}.items()
        )
        self.postnet, self.postnet_norms, self.postnet_dropouts = _convolutions(
            spec, spec.postnet, "postnet", "postnet_"
        )
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        characters, counts, before, frames = inputs
        inside = mask(counts, ops.shape(characters)[1])
        memory = self._encode(characters, inside, training)
        states = self._decode(memory, inside, before, training)
        timed = ops.cast(mask(frames, ops.shape(before)[1]), states.dtype)[:, :, None]
        mel = self.frame(states) * timed
        corrected = mel + self._correct(mel, timed, training)
        return ops.concatenate([mel, corrected, self.stop(states)], axis=2)

    def example_losses(self, inputs: Any, outputs: Any, targets: Any) -> Any:
        """Return the mean squared errors of both frames and the cross-entropy of the end, (n,)."""
        bins, frames, longest = self.spec.bins, inputs[3], ops.shape(targets)[1]
        timed = ops.cast(mask(frames, longest), outputs.dtype)
        squared = sum(
            ops.mean(ops.square(ops.subtract(outputs[..., part], targets)), axis=2)
            for part in (slice(bins), slice(bins, 2 * bins))
        )
        ends = ops.cast(frames, "int32")[:, None] - 1
        is_last = ops.equal(ops.arange(longest, dtype="int32"), ends)
        logits = outputs[..., -1]
        entropies = ops.softplus(logits) - ops.cast(is_last, outputs.dtype) * logits
        return ops.sum((squared + entropies) * timed, axis=1) / ops.cast(frames, outputs.dtype)

    def _encode(self, characters: Any, inside: Any, training: bool) -> Any:
        x = self.embedding(characters)
        timed = ops.cast(inside, x.dtype)[:, :, None]
        x = x * timed
        for index, (convolution, norm) in enumerate(
            zip(self.convolutions, self.norms, strict=True)
        ):
            x = ops.relu(norm(convolution(x), training=training))
            x = self.dropouts[index](x, training=training) * timed
        return lstms.outputs(self.spec.lstm, self.encoder, x, inside, training=training)

    def _decode(self, memory: Any, inside: Any, before: Any, training: bool) -> Any:
        """Return the decoder's output and its context, frame by frame, (n, F, decoder + width)."""
        x = before
        for layer, dropout in zip(self.prenet, self.prenet_dropouts, strict=True):
            x = dropout(ops.relu(layer(x)), training=training)
        keys = self.key(memory)

        def step(state: Any, frame: Any) -> Any:
            context, total, asking, speaking = state
            both = ops.concatenate([frame, context], axis=1)
            _, asking = self.asking(both, asking, training=training)
            shares = self._attend(asking[0], keys, total, inside)
            context, total = ops.einsum("nc,ncw->nw", shares, memory), total + shares
            _, speaking = self.speaking(asking[0], speaking, training=training)
            return context, total, asking, speaking

        zeros = ops.zeros((ops.shape(x)[0], self.spec.decoder), dtype=x.dtype)
        context, total = ops.zeros_like(memory[:, 0]), ops.zeros_like(memory[:, :, 0])
        first = (context, total, [zeros, zeros], [zeros, zeros])
        context, _, _, speaking = loop(step, first, ops.transpose(x, (1, 0, 2)))
        return ops.transpose(ops.concatenate([speaking[0], context], axis=2), (1, 0, 2))

    def _attend(self, asking: Any, keys: Any, total: Any, inside: Any) -> Any:
        """Return each character's share of the attention, (n, C)."""
        # Products written out: the layers' own are by shapes that XLA does not know in a loop.
        places = self.place(ops.expand_dims(total, 2))
        places = ops.einsum("ncf,fa->nca", places, self.where.kernel)
        hidden = ops.tanh(ops.expand_dims(self.query(asking), 1) + keys + places)
        scores = ops.einsum("nca,ao->nc", hidden, self.score.kernel)
        return ops.softmax(ops.where(inside, scores, NEVER), axis=1)

    def _correct(self, mel: Any, timed: Any, training: bool) -> Any:
        x, last = mel, len(self.postnet) - 1
        for index, (convolution, norm) in enumerate(
            zip(self.postnet, self.postnet_norms, strict=True)
        ):
            x = norm(convolution(x), training=training)
            if index < last:
                x = ops.tanh(x)
            x = self.postnet_dropouts[index](x, training=training) * timed
        return x


build = Tacotron2


def _convolutions(
    spec: Spec, sizes: list[tuple[int, int]], name: str, prefix: str = ""
) -> tuple[list[Any], list[Any], list[Any]]:
    """Return convolutions with their norms and dropouts."""
    convolutions, norms, dropouts = [], [], []
    for index, (inputs, outputs) in enumerate(sizes):
        options = {"padding": "same", "use_bias": False, "name": layer_name(f"{name}.{index}")}
        convolutions.append(built(layers.Conv1D(outputs, KERNEL, **options), None, None, inputs))
        norms.append(built(batch_norm(f"{prefix}norms.{index}"), None, None, outputs))
        dropouts.append(layers.Dropout(spec.dropout, name=layer_name(f"{prefix}dropouts.{index}")))
    return convolutions, norms, dropouts


def _linear(path: str, outputs: int, inputs: int) -> Any:
    layer = layers.Dense(outputs, use_bias=False, name=layer_name(path))
    return built(layer, None, None, inputs)
