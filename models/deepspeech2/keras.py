"""Deep Speech 2 in Keras; pytorch.py is its twin."""

from __future__ import annotations

from typing import Any

from keras import layers, ops

from models.deepspeech2.ctc import LOSSES
from models.deepspeech2.spec import BLANK, CLIPPED_AT, KERNELS, STRIDES, Spec, frames_left, shapes
from models.layers.keras import Sequences, batch_norm, built, mask
from models.lstms import keras as lstms
from models.transfer import layer_name

OF_IMAGES = ("convolutions", "norms")


class DeepSpeech2(Sequences):
    """(features (n, frames, bins), lengths (n,)) -> logits (n, frames left, symbols)."""

    def __init__(self, spec: Spec) -> None:
        arrays = shapes(spec)
        of_sequences = {name: arrays[name] for name in arrays if not name.startswith(OF_IMAGES)}
        super().__init__(spec, of_sequences, merge_mode="sum")
        self.padded, self.convolutions, self.norms, inputs = [], [], [], 1
        for index, (kernel, stride) in enumerate(zip(KERNELS, STRIDES, strict=True)):
            self.padded.append(layers.ZeroPadding2D((kernel[0] // 2, kernel[1] // 2)))
            name, options = layer_name(f"convolutions.{index}"), {"use_bias": False}
            convolution = layers.Conv2D(spec.channels, kernel, stride, name=name, **options)
            self.convolutions.append(built(convolution, None, None, None, inputs))
            self.norms.append(built(batch_norm(f"norms.{index}"), None, None, None, spec.channels))
            inputs = spec.channels

    def call(self, inputs: Any, training: bool = False) -> Any:
        features, lengths = inputs
        lengths = frames_left(lengths)
        x = ops.expand_dims(features, 3)
        for pad, convolution, norm in zip(self.padded, self.convolutions, self.norms, strict=True):
            x = ops.clip(norm(convolution(pad(x)), training=training), 0, CLIPPED_AT)
            inside = mask(lengths, ops.shape(x)[1])
            x = x * ops.cast(inside, x.dtype)[:, :, None, None]
        x = ops.reshape(x, (*ops.shape(x)[:2], self.spec.channels * self.spec.bins))
        for index in range(self.spec.layers):
            layer = self.parts[f"lstms.{index}"]
            x = lstms.outputs(self.spec.lstm, layer, x, inside, training=training)
            x = self.parts[f"sequence_norms.{index}"](x, training=training)
        return self.parts["symbols"](x)

    def example_losses(self, inputs: Any, outputs: Any, targets: Any) -> Any:
        """Return minus the logarithm of each transcript's probability, over its alignments."""
        symbols = ops.sum(ops.cast(ops.not_equal(targets, BLANK), "int32"), axis=1)
        return LOSSES[self.spec.ctc](outputs, targets, frames_left(inputs[1]), symbols)


build = DeepSpeech2
