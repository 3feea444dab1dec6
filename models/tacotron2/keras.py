"""Tacotron 2 in Keras; pytorch.py is its twin."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from models.layers.scan import outputs_of
from models.lstms import keras as lstms
from models.tacotron2.spec import CONVOLUTIONS, KERNEL, NEVER, Spec
from models.transfer import layer_name


class Tacotron2(keras.Model):  # type: ignore[misc]
    """(characters (n, C), their number (n,), frames before (n, F, bins), frames (n,)) -> (n, F, 2 · bins + 1).

    The last axis holds a frame, the frame as corrected, and the logit of its being the last.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = layers.Embedding(spec.characters, spec.width, name="embedding")
        self.convolutions = _convolutions("convolutions", [(spec.width, spec.width)] * CONVOLUTIONS)
        self.norms = [_norm(f"norms.{index}") for index, _ in enumerate(self.convolutions)]
        self.dropouts = [
            _dropout(spec, f"dropouts.{index}") for index, _ in enumerate(self.convolutions)
        ]
        self.encoder = layers.Bidirectional(
            layers.LSTM(spec.width // 2, return_sequences=True), "concat", name="encoder"
        )
        self.prenet = [_linear(spec.prenet, f"prenet.{index}") for index in range(2)]
        self.prenet_dropouts = [
            _dropout(spec, f"prenet_dropouts.{index}") for index, _ in enumerate(self.prenet)
        ]
        self.asking, self.speaking = (
            layers.LSTMCell(width, name=name) for name, (_, width) in spec.lstms.items()
        )
        self.query, self.key = _linear(spec.attention, "query"), _linear(spec.attention, "key")
        self.place = layers.Conv1D(
            spec.filters, spec.reach, padding="same", use_bias=False, name="place"
        )
        self.where, self.score = _linear(spec.attention, "where"), _linear(1, "score")
        self.frame, self.stop = layers.Dense(spec.bins, name="frame"), layers.Dense(1, name="stop")
        self.postnet = _convolutions("postnet", spec.postnet)
        self.postnet_norms = [
            _norm(f"postnet_norms.{index}") for index, _ in enumerate(self.postnet)
        ]
        self.postnet_dropouts = [
            _dropout(spec, f"postnet_dropouts.{index}") for index, _ in enumerate(self.postnet)
        ]

    def build(self, input_shape: Any = None) -> None:
        spec = self.spec
        self.embedding.build((None, None))
        pairs = [(spec.width, spec.width)] * CONVOLUTIONS + spec.postnet
        for (inputs, outputs), convolution, norm in zip(
            pairs, self.convolutions + self.postnet, self.norms + self.postnet_norms, strict=True
        ):
            convolution.build((None, None, inputs))
            norm.build((None, None, outputs))
        for layer, size in zip(self.prenet, (spec.bins, spec.prenet), strict=True):
            layer.build((None, None, size))
        for name, (inputs, _) in spec.lstms.items():
            getattr(self, name).build((None, inputs))
        self.encoder.build((None, None, spec.width))
        self.query.build((None, spec.decoder))
        self.key.build((None, None, spec.width))
        self.place.build((None, None, 1))
        self.where.build((None, None, spec.filters))
        self.score.build((None, None, spec.attention))
        for layer in (self.frame, self.stop):
            layer.build((None, None, spec.decoder + spec.width))
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        characters, spoken, before, frames = inputs
        there = _mask(spoken, ops.shape(characters)[1])
        spoken_frames = self._spoken(
            self._encoded(characters, there, training), there, before, training
        )
        timed = ops.cast(_mask(frames, ops.shape(before)[1]), spoken_frames.dtype)[:, :, None]
        mel = self.frame(spoken_frames) * timed
        return ops.concatenate(
            [mel, mel + self._correction(mel, timed, training), self.stop(spoken_frames)], axis=2
        )

    def example_losses(self, inputs: Any, outputs: Any, targets: Any) -> Any:
        """(n,): squared errors of the frames, before and after the correction, and the cross-entropy of the end, each a mean."""
        bins, frames = self.spec.bins, inputs[3]
        most = ops.shape(targets)[1]
        timed = ops.cast(_mask(frames, most), outputs.dtype)
        errors = (
            ops.square(ops.subtract(outputs[..., part], targets))
            for part in (slice(bins), slice(bins, 2 * bins))
        )
        squared = sum(ops.mean(one, axis=2) for one in errors)
        last = ops.cast(
            ops.equal(ops.arange(most, dtype="int32"), ops.cast(frames, "int32")[:, None] - 1),
            outputs.dtype,
        )
        ends = ops.softplus(outputs[..., -1]) - last * outputs[..., -1]
        return ops.sum((squared + ends) * timed, axis=1) / ops.cast(frames, outputs.dtype)

    def _encoded(self, characters: Any, there: Any, training: bool) -> Any:
        x = self.embedding(characters)
        kept = ops.cast(there, x.dtype)[:, :, None]
        x = x * kept
        for convolution, norm, dropout in zip(
            self.convolutions, self.norms, self.dropouts, strict=True
        ):
            x = dropout(ops.relu(norm(convolution(x), training=training)), training=training) * kept
        return lstms.outputs(self.spec.lstm, self.encoder, x, there, training=training)

    def _spoken(self, memory: Any, there: Any, before: Any, training: bool) -> Any:
        """(n, F, decoder + width): what the decoder says and what it attended to, frame by frame."""
        given = before
        for layer, dropout in zip(self.prenet, self.prenet_dropouts, strict=True):
            given = dropout(ops.relu(layer(given)), training=training)
        keys = self.key(memory)

        def step(state: Any, now: Any) -> Any:
            context, so_far, asking, speaking = state
            _, asking = self.asking(
                ops.concatenate([now, context], axis=1), asking, training=training
            )
            shares = self._shares(asking[0], keys, so_far, there)
            context, so_far = ops.einsum("nc,ncw->nw", shares, memory), so_far + shares
            _, speaking = self.speaking(asking[0], speaking, training=training)
            return context, so_far, asking, speaking

        zeros = ops.zeros((ops.shape(given)[0], self.spec.decoder), dtype=given.dtype)
        first = (
            ops.zeros_like(memory[:, 0]),
            ops.zeros_like(memory[:, :, 0]),
            [zeros, zeros],
            [zeros, zeros],
        )
        context, _, _, speaking = outputs_of(step, first, ops.transpose(given, (1, 0, 2)))
        return ops.transpose(ops.concatenate([speaking[0], context], axis=2), (1, 0, 2))

    def _shares(self, asking: Any, keys: Any, so_far: Any, there: Any) -> Any:
        """(n, C): how much of the attention each character gets."""
        # products written out: the layers' own are by shapes that XLA does not know inside a loop
        places = ops.einsum(
            "ncf,fa->nca", self.place(ops.expand_dims(so_far, 2)), self.where.kernel
        )
        hidden = ops.tanh(ops.expand_dims(self.query(asking), 1) + keys + places)
        scores = ops.einsum("nca,ao->nc", hidden, self.score.kernel)
        return ops.softmax(ops.where(there, scores, NEVER), axis=1)

    def _correction(self, mel: Any, timed: Any, training: bool) -> Any:
        x, last = mel, len(self.postnet) - 1
        for index, (convolution, norm) in enumerate(
            zip(self.postnet, self.postnet_norms, strict=True)
        ):
            x = norm(convolution(x), training=training)
            x = (
                self.postnet_dropouts[index](x if index == last else ops.tanh(x), training=training)
                * timed
            )
        return x


def build(spec: Spec) -> keras.Model:
    network = Tacotron2(spec)
    network.build()
    return network


def _convolutions(path: str, sizes: list[tuple[int, int]]) -> list[Any]:
    return [
        layers.Conv1D(
            outputs, KERNEL, padding="same", use_bias=False, name=layer_name(f"{path}.{index}")
        )
        for index, (_, outputs) in enumerate(sizes)
    ]


def _norm(path: str) -> Any:
    return layers.BatchNormalization(epsilon=1e-5, momentum=0.9, name=layer_name(path))


def _dropout(spec: Spec, path: str) -> Any:
    return layers.Dropout(spec.dropout, name=layer_name(path))


def _linear(outputs: int, path: str) -> Any:
    return layers.Dense(outputs, use_bias=False, name=layer_name(path))


def _mask(lengths: Any, most: Any) -> Any:
    return ops.less(ops.arange(most, dtype="int32"), ops.cast(lengths, "int32")[:, None])
