"""Sizes of BERT, its initial weights and batches of random sentences. NumPy only.

Source: Devlin et al., BERT: pre-training of deep bidirectional transformers for language
understanding, NAACL 2019, sections 3 and 3.2 and appendix A: BERT-base, fine-tuned to classify
sentences. Names are those of Hugging Face's `BertModel`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.contract import Array, Batch, ErrorCode, ModelError, Weights
from models.layers.images import Shapes
from models.sequences import check_sizes, draw_weights, is_inside, log_normal

EPSILON = 1e-12  # of every LayerNorm
PADDING = 0


@dataclass(frozen=True)
class Spec:
    """Sizes of BERT.

    Attributes:
        vocabulary: Number of word pieces.
        width: Width of the encoder.
        layers: Layers of the encoder.
        heads: Heads of its attention.
        intermediate: Width between the linear layers of a block.
        positions: Length of the longest row.
        types: Kinds of sentences in a row.
        classes: Classes of the classifier behind the pooler; None gives the pooled vectors
            (n, width), the 109,482,240 parameters of BERT-base.
        dropout: Rate of each dropout.
    """

    vocabulary: int = 30_522
    width: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3_072
    positions: int = 512
    types: int = 2
    classes: int | None = 2
    dropout: float = 0.1

    def __post_init__(self) -> None:
        sizes = ("width", "layers", "heads", "intermediate", "positions", "types")
        check_sizes("bert", self, vocabulary=2, **dict.fromkeys(sizes, 1))
        if self.width % self.heads:
            pair = f"{self.width} of {self.heads}"
            raise ModelError(
                ErrorCode.INVALID_VALUE, f"bert: width must be a multiple of heads, not {pair}"
            )
        if self.classes is not None and self.classes < 1:
            raise ModelError(
                ErrorCode.INVALID_VALUE,
                f"bert: classes must be at least 1 or None, not {self.classes}",
            )


# Heads of 16: the scale of attention is a power of two, which no framework rounds.
LENGTHS_AT = 1
SIZES = {
    "paper": Spec(),
    "tiny": Spec(vocabulary=61, width=32, layers=2, heads=2, intermediate=48, positions=20),
}


def lengths(size: str, count: int, rng: np.random.Generator) -> Array:
    """Draw lengths of random examples.

    Args:
        size: Name in `SIZES`.
        count: Number of examples.
        rng: Draws them.

    Returns:
        int64 (count,). Word pieces: around 25, from 4 to 128; `tiny`: around 6, from 2 to 16.
    """
    median, least, most = (25, 4, 128) if size == "paper" else (6, 2, 16)
    return np.round(log_normal(rng, count, median, 0.6, least, most)).astype(np.int64)


def shapes(spec: Spec) -> dict[str, tuple[int, ...]]:
    arrays, width = Shapes(), spec.width
    rows_of = {"word": spec.vocabulary, "position": spec.positions, "token_type": spec.types}
    for name, rows in rows_of.items():
        arrays.embedding(f"embeddings.{name}_embeddings", rows, width)
    arrays.layer_norm("embeddings.LayerNorm", width)
    for index in range(spec.layers):
        path = f"encoder.layer.{index}"
        for name in ("query", "key", "value"):
            arrays.linear(f"{path}.attention.self.{name}", width, width)
        arrays.linear(f"{path}.attention.output.dense", width, width)
        arrays.layer_norm(f"{path}.attention.output.LayerNorm", width)
        arrays.linear(f"{path}.intermediate.dense", spec.intermediate, width)
        arrays.linear(f"{path}.output.dense", width, spec.intermediate)
        arrays.layer_norm(f"{path}.output.LayerNorm", width)
    arrays.linear("pooler.dense", width, width)
    if spec.classes is not None:
        arrays.linear("classifier", spec.classes, width)
    return arrays


def checkpoint_name(name: str) -> str | None:
    """Return the name of an array here, None for one that this network does not have.

    A published file may put `bert.` before its names, and call a LayerNorm's arrays gamma and beta.
    It holds the heads of pre-training (`cls.`) and the numbers of the positions.
    """
    if name.startswith("cls.") or name.endswith("embeddings.position_ids"):
        return None
    path, dot, last = name.removeprefix("bert.").rpartition(".")
    if path.endswith("LayerNorm"):
        last = {"gamma": "weight", "beta": "bias"}.get(last, last)
    return path + dot + last


def initial_weights(spec: Spec, rng: np.random.Generator) -> Weights:
    """Draw N(0, 0.02²), again beyond two deviations; biases 0, LayerNorms 1 and 0."""

    def draw(_: str, shape: tuple[int, ...]) -> Array:
        if len(shape) == 1:
            return np.zeros(shape)
        values = rng.standard_normal(shape)
        while (outliers := np.abs(values) > 2).any():
            values[outliers] = rng.standard_normal(int(outliers.sum()))
        return values * 0.02

    return draw_weights(shapes(spec), draw)


def batch(spec: Spec, lengths: Array, rng: np.random.Generator) -> Batch:
    """Return random word pieces and classes, rows padded to the longest.

    Returns:
        inputs, int32: tokens (n, length), lengths (n,), types (n, length), which are zero.
    """
    inside = is_inside(lengths)
    tokens = rng.integers(1, spec.vocabulary, inside.shape, dtype=np.int32)
    tokens[~inside] = PADDING
    targets = rng.integers(0, spec.classes or 1, len(tokens), dtype=np.int32)
    inputs = (tokens, lengths.astype(np.int32), np.zeros_like(tokens))
    return Batch(inputs, targets, np.ones(len(tokens), np.float32))


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """Return a small version, or the paper's, and rows of two sentences of several lengths."""
    spec = SIZES["paper" if full else "tiny"]
    rows = batch(spec, np.array([9, 14, 5, 16, 1, 11]), rng)
    tokens, lengths, types = rows.inputs
    types[:] = (np.arange(types.shape[1]) >= lengths[:, None] // 2) * (tokens != PADDING)
    rows.weights[-1] = 0
    return spec, rows
