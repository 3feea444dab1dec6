"""BERT in Keras; pytorch.py is its twin."""

from __future__ import annotations

from functools import partial
from typing import Any

from keras import ops

from models.bert.spec import EPSILON, Spec, shapes
from models.layers.keras import Sequences, attend, gelu, mask


class Bert(Sequences):
    """call((tokens (n, length), lengths (n,), types (n, length))) -> logits (n, classes).

    Without classes it returns pooled vectors (n, width).
    """

    def __init__(self, spec: Spec) -> None:
        blocks = [f"encoder.layer.{index}" for index in range(spec.layers)]
        names = ("attention.self", "attention.output", "output")
        paths = ["embeddings", *(f"{path}.{name}" for path in blocks for name in names)]
        drops = [f"{path}.dropout" for path in paths] + ["dropout"] * (spec.classes is not None)
        super().__init__(spec, shapes(spec), drops, epsilon=EPSILON)
        self.blocks = blocks

    def call(self, inputs: Any, training: bool = False) -> Any:
        tokens, lengths, types = inputs
        longest = ops.shape(tokens)[1]
        seen = ops.repeat(mask(lengths, longest), self.spec.heads, axis=0)[:, None]
        indices = {
            "word": tokens,
            "token_type": types,
            "position": ops.arange(longest, dtype="int32"),
        }
        x = sum(self.parts[f"embeddings.{name}_embeddings"](at) for name, at in indices.items())
        x = self.drop("embeddings.dropout", self.parts["embeddings.LayerNorm"](x), training)
        for path in self.blocks:
            attended = self._attend(f"{path}.attention.self", x, seen, training)
            x = self._output(f"{path}.attention.output", attended, x, training)
            between = gelu(self.parts[f"{path}.intermediate.dense"](x))
            x = self._output(f"{path}.output", between, x, training)
        pooled = ops.tanh(self.parts["pooler.dense"](x[:, 0]))
        if self.spec.classes is None:
            return pooled
        return self.parts["classifier"](self.drop("dropout", pooled, training))

    def _attend(self, path: str, x: Any, seen: Any, training: bool) -> Any:
        query, key, value = (self.parts[f"{path}.{name}"](x) for name in ("query", "key", "value"))
        drop = partial(self.drop, f"{path}.dropout", training=training)
        return attend(query, key, value, self.spec.heads, seen=seen, drop=drop)

    def _output(self, path: str, x: Any, before: Any, training: bool) -> Any:
        x = self.drop(f"{path}.dropout", self.parts[f"{path}.dense"](x), training)
        return self.parts[f"{path}.LayerNorm"](x + before)


build = Bert
