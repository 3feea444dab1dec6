"""Sizes of the caption decoder, its initial weights and random captions. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from models.contract import Array, Batch, Weights
from models.layers.images import Shapes
from models.sequences import check_sizes, draw_weights, is_inside, log_normal


@dataclass(frozen=True)
class CaptionDecoderSpec:
    """Sizes of the caption decoder.

    Attributes:
        vocabulary: Number of token ids, 0 is padding.
        length: Longest caption in tokens; it shapes no weight.
        features: Numbers of an image.
        width: Size of the embedding and of the LSTM.
        hidden: Width of the layer before the vocabulary.
        dropout: Rate of both dropouts.
        lstm: One of `models.lstms.IMPLEMENTATIONS`; it shapes no weight.
    """

    vocabulary: int
    length: int
    features: int = 1920
    width: int = 256
    hidden: int = 128
    dropout: float = 0.5
    lstm: str = "layer"

    def __post_init__(self) -> None:
        check_sizes("caption_decoder", self, vocabulary=1, length=1, features=1, width=1, hidden=1)


Spec = CaptionDecoderSpec
LENGTHS_AT = 1
SIZES = {
    "paper": CaptionDecoderSpec(vocabulary=8_485, length=34),
    "tiny": CaptionDecoderSpec(vocabulary=61, length=7, features=40, width=24, hidden=12),
}


def shapes(spec: CaptionDecoderSpec) -> Shapes:
    arrays = Shapes()
    arrays.linear("image", spec.width, spec.features)
    arrays.embedding("embedding", spec.vocabulary, spec.width)
    arrays.lstm("lstm", spec.width, spec.width)
    arrays.linear("merge", spec.hidden, spec.width)
    arrays.linear("words", spec.vocabulary, spec.hidden)
    return arrays


def initial_weights(spec: CaptionDecoderSpec, rng: np.random.Generator) -> Weights:
    """Draw PyTorch's default distributions, once for all frameworks.

    Linear layers U(±1/√fan_in), LSTM U(±1/√width), embeddings N(0, 1).
    """
    fans = {"image": spec.features, "lstm": spec.width, "merge": spec.width, "words": spec.hidden}

    def draw(name: str, shape: tuple[int, ...]) -> Array:
        layer = name.partition(".")[0]
        if layer == "embedding":
            return rng.standard_normal(shape)
        bound = 1 / sqrt(fans[layer])
        return rng.uniform(-bound, bound, shape)

    return draw_weights(shapes(spec), draw)


def lengths(size: str, count: int, rng: np.random.Generator) -> Array:
    """Draw words of captions: around 10, from 2 to the longest; `tiny`: around 4."""
    median = 10 if size == "paper" else 4
    words = log_normal(rng, count, median, 0.3, 0, np.inf)
    return np.clip(np.round(words), 2, SIZES[size].length).astype(np.int64)


def batch(spec: CaptionDecoderSpec, lengths: Array, rng: np.random.Generator) -> Batch:
    """Return random pictures and captions, padded to the longest, a target behind each word.

    Returns:
        inputs: features (n, F), tokens int32 (n, T), positions int32 (n · T,). These are all
        positions, the padding with a weight of 0, so that batches of one length have one shape.
    """
    inside = is_inside(lengths)
    tokens = np.where(inside, rng.integers(1, spec.vocabulary, inside.shape), 0).astype(np.int32)
    features = rng.standard_normal((len(lengths), spec.features)).astype(np.float32)
    targets = rng.integers(1, spec.vocabulary, tokens.size, dtype=np.int32)
    inputs = (features, tokens, np.arange(tokens.size, dtype=np.int32))
    return Batch(inputs, targets, inside.ravel().astype(np.float32))


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[CaptionDecoderSpec, Batch]:
    """Return a small version, or Flickr8k's, and ragged captions with repeated tokens.

    Its dropout is not the default, which a campaign may change: a constant rate would show.
    """
    spec = replace(SIZES["paper" if full else "tiny"], dropout=0.3)
    tokens = rng.integers(1, 9, (5, spec.length), dtype=np.int32)
    lengths = rng.integers(2, spec.length + 1, len(tokens))
    tokens[~is_inside(lengths, spec.length)] = 0
    positions = np.flatnonzero(tokens).astype(np.int32)
    weights = np.ones(len(positions) + 1, np.float32)
    weights[-1] = 0
    features = rng.standard_normal((len(tokens), spec.features)).astype(np.float32)
    inputs = (features, tokens, np.append(positions, np.int32(0)))
    targets = rng.integers(1, spec.vocabulary, len(weights), dtype=np.int32)
    return spec, Batch(inputs, targets, weights)
