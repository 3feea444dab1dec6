"""Tacotron 2 in Keras; pytorch.py is its twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import activations, ops

from models.layers import NEVER
from models.layers.keras import Sequences, mask
from models.layers.keras import scan as loop
from models.lstms import keras as lstms
from models.tacotron2.spec import CONVOLUTIONS, POSTNET, Spec, shapes


class Tacotron2(Sequences):
    """(characters (n, C), their number (n,), frames before (n, F, bins), frames (n,)) -> outputs.

    The last axis of the outputs (n, F, 2 · bins + 1) holds a frame, the corrected frame, and the
    logit of its being the last.
    """

    def __init__(self, spec: Spec) -> None:
        counts = {"dropouts": CONVOLUTIONS, "prenet_dropouts": 2, "postnet_dropouts": POSTNET}
        drops = [f"{name}.{index}" for name, count in counts.items() for index in range(count)]
        super().__init__(spec, shapes(spec), drops)

    def call(self, inputs: Any, training: bool = False) -> Any:
        characters, counts, before, frames = inputs
        inside = mask(counts, ops.shape(characters)[1])
        memory = self._encode(characters, inside, training)
        states = self._decode(memory, inside, before, training)
        timed = ops.cast(mask(frames, ops.shape(before)[1]), states.dtype)[:, :, None]
        mel = self.parts["frame"](states) * timed
        functions = [*[ops.tanh] * (POSTNET - 1), activations.linear]
        corrected = mel + self._convolve("postnet", "postnet_", mel, functions, timed, training)
        return ops.concatenate([mel, corrected, self.parts["stop"](states)], axis=2)

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
        x = self.parts["embedding"](characters)
        timed = ops.cast(inside, x.dtype)[:, :, None]
        functions = [ops.relu] * CONVOLUTIONS
        x = self._convolve("convolutions", "", x * timed, functions, timed, training)
        layer = self.parts["encoder"]
        return lstms.outputs(self.spec.lstm, layer, x, inside, training=training)

    def _convolve(
        self,
        path: str,
        prefix: str,
        x: Any,
        functions: list[Callable[[Any], Any]],
        timed: Any,
        training: bool,
    ) -> Any:
        """Convolve, normalise, activate and drop, with zeros behind the ends."""
        for index, activate in enumerate(functions):
            norm = self.parts[f"{prefix}norms.{index}"]
            x = activate(norm(self.parts[f"{path}.{index}"](x), training=training))
            x = self.drop(f"{prefix}dropouts.{index}", x, training) * timed
        return x

    def _decode(self, memory: Any, inside: Any, before: Any, training: bool) -> Any:
        """Return the decoder's output and its context, frame by frame, (n, F, decoder + width)."""
        x = before
        for index in range(2):
            x = ops.relu(self.parts[f"prenet.{index}"](x))
            x = self.drop(f"prenet_dropouts.{index}", x, training)
        keys = self.parts["key"](memory)

        def step(state: Any, frame: Any) -> Any:
            context, total, asking, speaking = state
            both = ops.concatenate([frame, context], axis=1)
            _, asking = self.parts["asking"](both, asking, training=training)
            shares = self._attend(asking[0], keys, total, inside)
            context, total = ops.einsum("nc,ncw->nw", shares, memory), total + shares
            _, speaking = self.parts["speaking"](asking[0], speaking, training=training)
            return context, total, asking, speaking

        zeros = ops.zeros((ops.shape(x)[0], self.spec.decoder), dtype=x.dtype)
        context, total = ops.zeros_like(memory[:, 0]), ops.zeros_like(memory[:, :, 0])
        first = (context, total, [zeros, zeros], [zeros, zeros])
        context, _, _, speaking = loop(step, first, ops.transpose(x, (1, 0, 2)))
        return ops.transpose(ops.concatenate([speaking[0], context], axis=2), (1, 0, 2))

    def _attend(self, asking: Any, keys: Any, total: Any, inside: Any) -> Any:
        """Return each character's share of the attention, (n, C)."""
        # Products written out: the layers' own are by shapes that XLA does not know in a loop.
        places = self.parts["place"](ops.expand_dims(total, 2))
        places = ops.einsum("ncf,fa->nca", places, self.parts["where"].kernel)
        hidden = ops.tanh(ops.expand_dims(self.parts["query"](asking), 1) + keys + places)
        scores = ops.einsum("nca,ao->nc", hidden, self.parts["score"].kernel)
        return ops.softmax(ops.where(inside, scores, NEVER), axis=1)


build = Tacotron2
