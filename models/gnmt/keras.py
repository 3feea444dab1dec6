"""GNMT in Keras; pytorch.py is its twin."""

from __future__ import annotations

from typing import Any

from keras import ops

from models.gnmt.spec import RESIDUAL_FROM, Spec, shapes
from models.layers import NEVER
from models.layers.keras import Sequences, mask
from models.lstms import keras as lstms


class GNMT(Sequences):
    """(source (n, S), lengths (n,), target (n, T)) -> logits (n · T, vocabulary)."""

    def __init__(self, spec: Spec) -> None:
        sides = ("encoder", "decoder")
        drops = [f"{side}_dropout.{index}" for side in sides for index in range(spec.layers)]
        super().__init__(spec, shapes(spec), drops)

    def call(self, inputs: Any, training: bool = False) -> Any:
        source, lengths, target = inputs
        inside, embed = mask(lengths, ops.shape(source)[1]), self.parts["embedding"]
        memory = self._layer("encoder", 0, embed(source), training, inside=inside)
        memory = self._upper("encoder", memory, training)
        x = self._layer("decoder", 0, embed(target), training)
        x = self._upper("decoder", x, training, self._attend(x, memory, inside))
        return ops.reshape(self.parts["words"](x), (-1, self.spec.vocabulary))

    def _layer(
        self,
        side: str,
        index: int,
        x: Any,
        training: bool,
        *,
        inside: Any = None,
        context: Any = None,
    ) -> Any:
        """Run a layer behind its dropout."""
        x = self.drop(f"{side}_dropout.{index}", x, training)
        if context is not None:
            x = ops.concatenate([x, context], axis=2)
        layer = self.parts[f"{side}.{index}"]
        return lstms.outputs(self.spec.lstm, layer, x, inside, training=training)

    def _upper(self, side: str, x: Any, training: bool, context: Any = None) -> Any:
        """Run the layers above the first, which all get the context."""
        for index in range(1, self.spec.layers):
            output = self._layer(side, index, x, training, context=context)
            x = output + x if index >= RESIDUAL_FROM else output
        return x

    def _attend(self, x: Any, memory: Any, inside: Any) -> Any:
        """Return the memory's mean for each word, weighted by what fits, (n, T, width)."""
        queries, keys = self.parts["query"](x), self.parts["key"](memory)
        hidden = ops.expand_dims(queries, 2) + ops.expand_dims(keys, 1)
        scores = ops.squeeze(self.parts["score"](ops.tanh(hidden)), 3)
        scores = ops.where(ops.expand_dims(inside, 1), scores, NEVER)
        return ops.matmul(ops.softmax(scores, axis=2), memory)


build = GNMT
