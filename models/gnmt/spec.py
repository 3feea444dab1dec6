"""Sizes of GNMT, its initial weights and random sentences. NumPy only.

Source: Wu et al., Google's neural machine translation system, 2016, sections 3 to 3.2 and 4: eight
LSTM layers on either side, the encoder's first bidirectional, residual connections from the third
layer on, attention by a network of one hidden layer. It takes the output of the decoder's first
layer, and its context goes to each layer above. Both languages share one embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from models.contract import Array, Batch, Weights
from models.layers.images import Shapes
from models.sequences import check_sizes, draw_weights, is_inside, log_normal

PADDING, START = 0, 1
LONGEST = 50  # word pieces of a sentence
RESIDUAL_FROM = 2


@dataclass(frozen=True)
class Spec:
    """Sizes of GNMT.

    Attributes:
        vocabulary: Number of word pieces; 0 is padding, 1 begins a sentence.
        width: Width of each layer.
        layers: Layers on either side.
        dropout: Rate before each layer.
        lstm: One of `models.lstms.IMPLEMENTATIONS`; it shapes no weight.
    """

    vocabulary: int = 32_000
    width: int = 1_024
    layers: int = 8
    dropout: float = 0.2
    lstm: str = "layer"

    def __post_init__(self) -> None:
        check_sizes("gnmt", self, vocabulary=3, width=1, layers=2)

    @property
    def inputs(self) -> dict[str, list[int]]:
        return {
            "encoder": [self.width, 2 * self.width, *[self.width] * (self.layers - 2)],
            "decoder": [self.width, *[2 * self.width] * (self.layers - 1)],
        }


LENGTHS_AT = 1
SIZES = {"paper": Spec(), "tiny": Spec(vocabulary=50, width=16, layers=3)}


def shapes(spec: Spec) -> Shapes:
    arrays = Shapes()
    arrays.embedding("embedding", spec.vocabulary, spec.width)
    for side, inputs in spec.inputs.items():
        for index, size in enumerate(inputs):
            is_bidirectional = (side, index) == ("encoder", 0)
            arrays.lstm(f"{side}.{index}", spec.width, size, bidirectional=is_bidirectional)
    arrays["query.weight"] = arrays["key.weight"] = (spec.width, spec.width)
    arrays["score.weight"] = (1, spec.width)
    arrays.linear("words", spec.vocabulary, spec.width)
    return arrays


def initial_weights(spec: Spec, rng: np.random.Generator) -> Weights:
    """Draw embeddings N(0, 1/width), everything else U(±1/√width)."""

    def draw(name: str, shape: tuple[int, ...]) -> Array:
        is_embedding = name == "embedding.weight"
        values = rng.standard_normal(shape) if is_embedding else rng.uniform(-1, 1, shape)
        return values / sqrt(spec.width)

    return draw_weights(shapes(spec), draw)


def lengths(size: str, count: int, rng: np.random.Generator) -> Array:
    """Draw lengths of random examples.

    Args:
        size: Name in `SIZES`.
        count: Number of examples.
        rng: Draws them.

    Returns:
        int64 (count,). Word pieces: around 25, from 3 to 50; `tiny`: a fifth of that.
    """
    pieces = log_normal(rng, count, 25, 0.5, 3, LONGEST) / (1 if size == "paper" else 5)
    return np.maximum(np.round(pieces), 2).astype(np.int64)


def batch(spec: Spec, lengths: Array, rng: np.random.Generator) -> Batch:
    """Return random pairs of sentences of equal lengths, padded to the longest.

    Returns:
        inputs: source, lengths int32 (n,), target one word behind; targets int32 (n · words,),
        weights 0 behind the end of a sentence.
    """
    inside = is_inside(lengths)
    source, target = (
        np.where(inside, rng.integers(2, spec.vocabulary, inside.shape), PADDING).astype(np.int32)
        for _ in range(2)
    )
    shifted = np.insert(target[:, :-1], 0, START, axis=1)
    inputs = (source, lengths.astype(np.int32), shifted)
    return Batch(inputs, target.ravel(), inside.ravel().astype(np.float32))


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    spec = SIZES["paper" if full else "tiny"]
    return spec, batch(spec, np.array([7, 3, 5, 2]), rng)
