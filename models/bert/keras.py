"""BERT in Keras; pytorch.py is its twin."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
from keras import layers, ops

from models.bert.spec import EPSILON, Spec, shapes
from models.layers.keras import attend, built, gelu, mask
from models.transfer import layer_name


class Bert(keras.Model):  # type: ignore[misc]
    """call((tokens (n, length), lengths (n,), types (n, length))) -> logits (n, classes).

    Without classes it returns pooled vectors (n, width). `parts` are the weighted layers by their
    torch paths, `drops` the dropouts.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.blocks = [f"encoder.layer.{index}" for index in range(spec.layers)]
        arrays = {name: shape for name, shape in shapes(spec).items() if name.endswith(".weight")}
        self.parts = {}
        for name, shape in arrays.items():
            path = name.removesuffix(".weight")
            self.parts[path] = built(_part(path, shape), None, None, shape[-1])
        names = ("attention.self", "attention.output", "output")
        paths = ["embeddings", *(f"{path}.{name}" for path in self.blocks for name in names)]
        drops = [f"{path}.dropout" for path in paths] + ["dropout"] * (spec.classes is not None)
        self.drops = {path: layers.Dropout(spec.dropout, name=layer_name(path)) for path in drops}
        self.built = True

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
        x = self._drop("embeddings", self.parts["embeddings.LayerNorm"](x), training)
        for path in self.blocks:
            attended = self._attend(f"{path}.attention.self", x, seen, training)
            x = self._output(f"{path}.attention.output", attended, x, training)
            between = gelu(self.parts[f"{path}.intermediate.dense"](x))
            x = self._output(f"{path}.output", between, x, training)
        pooled = ops.tanh(self.parts["pooler.dense"](x[:, 0]))
        if self.spec.classes is None:
            return pooled
        return self.parts["classifier"](self.drops["dropout"](pooled, training=training))

    def _attend(self, path: str, x: Any, seen: Any, training: bool) -> Any:
        query, key, value = (self.parts[f"{path}.{name}"](x) for name in ("query", "key", "value"))
        drop = partial(self._drop, path, training=training)
        return attend(query, key, value, self.spec.heads, seen=seen, drop=drop)

    def _output(self, path: str, x: Any, before: Any, training: bool) -> Any:
        x = self._drop(path, self.parts[f"{path}.dense"](x), training)
        return self.parts[f"{path}.LayerNorm"](x + before)

    def _drop(self, path: str, x: Any, training: bool) -> Any:
        return self.drops[f"{path}.dropout"](x, training=training)


build = Bert


def _part(path: str, shape: tuple[int, ...]) -> Any:
    name = layer_name(path)
    if path.endswith("_embeddings"):
        return layers.Embedding(*shape, name=name)
    if path.endswith("LayerNorm"):
        return layers.LayerNormalization(epsilon=EPSILON, name=name)
    return layers.Dense(shape[0], name=name)
