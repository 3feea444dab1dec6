"""BERT in Keras; pytorch.py is its twin."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from models.bert.spec import EPSILON, Spec, shapes
from models.layers.keras import attend, gelu
from models.transfer import layer_name


class Bert(keras.Model):  # type: ignore[misc]
    """call((tokens (n, length), lengths (n,), types (n, length))) -> logits (n, classes), or pooled vectors (n, width).

    parts: the weighted layers by their torch paths; drops: those that drop.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.blocks = [f"encoder.layer.{index}" for index in range(spec.layers)]
        weights = {
            name.removesuffix(".weight"): shape
            for name, shape in shapes(spec).items()
            if name.endswith(".weight")
        }
        self.parts = {path: _part(path, shape) for path, shape in weights.items()}
        self.inputs_of = {path: shape[-1] for path, shape in weights.items()}
        at = [
            "embeddings",
            *(
                f"{path}.{of}"
                for path in self.blocks
                for of in ("attention.self", "attention.output", "output")
            ),
        ]
        drops = [f"{path}.dropout" for path in at] + ["dropout"] * (spec.classes is not None)
        self.drops = {path: layers.Dropout(spec.dropout, name=layer_name(path)) for path in drops}

    def build(self) -> None:
        for path, layer in self.parts.items():
            layer.build((None, None, self.inputs_of[path]))
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        tokens, lengths, types = inputs
        positions = ops.arange(ops.shape(tokens)[1], dtype="int32")
        seen = ops.repeat(positions < lengths[:, None], self.spec.heads, axis=0)[:, None]
        given = {"word": tokens, "token_type": types, "position": positions}
        x = sum(
            self.parts[f"embeddings.{name}_embeddings"](indices) for name, indices in given.items()
        )
        x = self._dropped("embeddings", self.parts["embeddings.LayerNorm"](x), training)
        for path in self.blocks:
            x = self._output(
                f"{path}.attention.output",
                self._attention(f"{path}.attention.self", x, seen, training),
                x,
                training,
            )
            x = self._output(
                f"{path}.output", gelu(self.parts[f"{path}.intermediate.dense"](x)), x, training
            )
        pooled = ops.tanh(self.parts["pooler.dense"](x[:, 0]))
        if self.spec.classes is None:
            return pooled
        return self.parts["classifier"](self.drops["dropout"](pooled, training=training))

    def _attention(self, path: str, x: Any, seen: Any, training: bool) -> Any:
        """What each position takes from those that are seen, a mask (n · heads, 1, length)."""
        query, key, value = (self.parts[f"{path}.{name}"](x) for name in ("query", "key", "value"))

        def drop(scores: Any) -> Any:
            return self._dropped(path, scores, training)

        return attend(query, key, value, self.spec.heads, seen=seen, drop=drop)

    def _output(self, path: str, x: Any, before: Any, training: bool) -> Any:
        """The end of a sub-layer."""
        return self.parts[f"{path}.LayerNorm"](
            self._dropped(path, self.parts[f"{path}.dense"](x), training) + before
        )

    def _dropped(self, path: str, x: Any, training: bool) -> Any:
        return self.drops[f"{path}.dropout"](x, training=training)


def build(spec: Spec) -> keras.Model:
    network = Bert(spec)
    network.build()
    return network


def _part(path: str, shape: tuple[int, ...]) -> Any:
    name = layer_name(path)
    if path.endswith("_embeddings"):
        return layers.Embedding(*shape, name=name)
    if path.endswith("LayerNorm"):
        return layers.LayerNormalization(epsilon=EPSILON, name=name)
    return layers.Dense(shape[0], name=name)
