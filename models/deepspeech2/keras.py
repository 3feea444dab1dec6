"""Deep Speech 2 in Keras; pytorch.py is its twin."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from models.deepspeech2.ctc import LOSSES
from models.deepspeech2.spec import BLANK, CLIPPED_AT, KERNELS, STRIDES, Spec, frames_left
from models.lstms import keras as lstms
from models.transfer import layer_name


class DeepSpeech2(keras.Model):  # type: ignore[misc]
    """(features (n, frames, bins), lengths (n,)) -> logits (n, frames behind the convolutions, symbols)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.padded = [layers.ZeroPadding2D((kernel[0] // 2, kernel[1] // 2)) for kernel in KERNELS]
        self.convolutions = [
            layers.Conv2D(
                spec.channels,
                kernel,
                stride,
                use_bias=False,
                name=layer_name(f"convolutions.{index}"),
            )
            for index, (kernel, stride) in enumerate(zip(KERNELS, STRIDES, strict=True))
        ]
        self.norms = [_norm(f"norms.{index}") for index, _ in enumerate(KERNELS)]
        self.lstms = [
            layers.Bidirectional(
                layers.LSTM(spec.width, return_sequences=True),
                "sum",
                name=layer_name(f"lstms.{index}"),
            )
            for index in range(spec.layers)
        ]
        self.sequence_norms = [_norm(f"sequence_norms.{index}") for index in range(spec.layers)]
        self.symbols = layers.Dense(spec.symbols, name="symbols")

    def build(self) -> None:
        spec = self.spec
        for index, (convolution, norm) in enumerate(
            zip(self.convolutions, self.norms, strict=True)
        ):
            convolution.build((None, None, None, spec.channels if index else 1))
            norm.build((None, None, None, spec.channels))
        for index, (lstm, norm) in enumerate(zip(self.lstms, self.sequence_norms, strict=True)):
            lstm.build((None, None, spec.width if index else spec.channels * spec.bins))
            norm.build((None, None, spec.width))
        self.symbols.build((None, None, spec.width))
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        features, lengths = inputs
        lengths = frames_left(lengths)
        x = ops.expand_dims(features, 3)
        for pad, convolution, norm in zip(self.padded, self.convolutions, self.norms, strict=True):
            x = ops.clip(norm(convolution(pad(x)), training=training), 0, CLIPPED_AT)
            mask = _mask(lengths, ops.shape(x)[1])
            x = x * ops.cast(mask, x.dtype)[:, :, None, None]
        x = ops.reshape(x, (*ops.shape(x)[:2], self.spec.channels * self.spec.bins))
        for layer, norm in zip(self.lstms, self.sequence_norms, strict=True):
            x = norm(
                lstms.outputs(self.spec.lstm, layer, x, mask, training=training), training=training
            )
        return self.symbols(x)

    def example_losses(self, inputs: Any, outputs: Any, targets: Any) -> Any:
        """(n,): minus the logarithm of the probability of each transcript, over all of its alignments."""
        spoken = ops.sum(ops.cast(ops.not_equal(targets, BLANK), "int32"), axis=1)
        return LOSSES[self.spec.ctc](outputs, targets, frames_left(inputs[1]), spoken)


def build(spec: Spec) -> keras.Model:
    network = DeepSpeech2(spec)
    network.build()
    return network


def _norm(path: str) -> Any:
    return layers.BatchNormalization(epsilon=1e-5, momentum=0.9, name=layer_name(path))


def _mask(lengths: Any, frames: Any) -> Any:
    return ops.arange(frames, dtype="int32") < lengths[:, None]
