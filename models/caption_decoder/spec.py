"""Sizes of the caption decoder, its expected parameter count and its initial weights. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from models.contract import Array, Batch, Weights
from models.layers.images import Shapes
from models.layers.sequences import check_sizes


@dataclass(frozen=True)
class CaptionDecoderSpec:
    """vocabulary: number of token ids, 0 is padding. length: longest caption in tokens; it shapes no weight.

    features: numbers per image. width: embedding and LSTM size. hidden: the layer before the vocabulary.
    lstm: one of `models.lstms.IMPLEMENTATIONS`; it shapes no weight.
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
SIZES = {
    "paper": CaptionDecoderSpec(vocabulary=8_485, length=34),
    "tiny": CaptionDecoderSpec(vocabulary=61, length=7, features=40, width=24, hidden=12),
}


def sized(size: str, *, lstm: str = "layer", **_: str) -> CaptionDecoderSpec:
    """size: `paper`, which is Flickr8k's, or `tiny`."""
    return replace(SIZES[size], lstm=lstm)


def shapes(spec: CaptionDecoderSpec) -> Shapes:
    """Name -> shape of every weight, PyTorch's names and layouts. One bias vector per LSTM gate."""
    found = Shapes()
    found.linear("image", spec.width, spec.features)
    found.embedding("embedding", spec.vocabulary, spec.width)
    found.lstm("lstm", spec.width, spec.width)
    found.linear("merge", spec.hidden, spec.width)
    found.linear("words", spec.vocabulary, spec.hidden)
    return found


def initial_weights(spec: CaptionDecoderSpec, rng: np.random.Generator) -> Weights:
    """PyTorch's default distributions, drawn once for all frameworks.

    Linear layers U(±1/√fan_in), LSTM U(±1/√width), embeddings N(0, 1).
    """
    bounds = {"image": spec.features, "lstm": spec.width, "merge": spec.width, "words": spec.hidden}
    weights: Weights = {}
    for name, shape in shapes(spec).items():
        layer = name.partition(".")[0]
        if layer == "embedding":
            values = rng.standard_normal(shape)
        else:
            bound = 1 / sqrt(bounds[layer])
            values = rng.uniform(-bound, bound, shape)
        weights[name] = values.astype(np.float32)
    return weights


def lengths(size: str, count: int, rng: np.random.Generator) -> Array:
    """int (count,): words of so many captions, log-normal around 10 and between 2 and the longest; `tiny`: around 4."""
    words = (10 if size == "paper" else 4) * np.exp(0.3 * rng.standard_normal(count))
    found: Array = np.clip(np.round(words), 2, SIZES[size].length).astype(np.int64)
    return found


def batch(spec: CaptionDecoderSpec, lengths: Array, rng: np.random.Generator) -> Batch:
    """Random pictures and captions, padded to the longest, a target behind each word.

    inputs: features (n, F), tokens int32 (n, T), positions int32 (n · T,): all of them, the padding with a weight of 0, so that
    batches of one length have one shape.
    """
    shape = (len(lengths), int(lengths.max()))
    there = np.arange(shape[1]) < lengths[:, None]
    tokens = np.where(there, rng.integers(1, spec.vocabulary, shape), 0).astype(np.int32)
    features = rng.standard_normal((shape[0], spec.features)).astype(np.float32)
    targets = rng.integers(1, spec.vocabulary, tokens.size, dtype=np.int32)
    inputs = (features, tokens, np.arange(tokens.size, dtype=np.int32))
    return Batch(inputs, targets, there.ravel().astype(np.float32))


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[CaptionDecoderSpec, Batch]:
    """A small version, or Flickr8k's, and a batch for the parity gate: ragged captions with repeated tokens.

    Its dropout is not the default, which a campaign may change: a rate that one side had written down would show.
    """
    spec = CaptionDecoderSpec(
        vocabulary=61, length=7, features=40, width=24, hidden=12, dropout=0.3
    )
    if full:
        spec = CaptionDecoderSpec(vocabulary=8_485, length=34, dropout=0.3)
    rows, tokens = 5, rng.integers(1, 9, (5, spec.length), dtype=np.int32)
    lengths = rng.integers(2, spec.length + 1, rows)
    tokens[np.arange(spec.length) >= lengths[:, None]] = 0
    positions = np.flatnonzero(tokens).astype(np.int32)
    weights = np.ones(len(positions) + 1, np.float32)
    weights[-1] = 0
    features = rng.standard_normal((rows, spec.features)).astype(np.float32)
    inputs = (features, tokens, np.append(positions, np.int32(0)))
    return spec, Batch(
        inputs, rng.integers(1, spec.vocabulary, len(weights), dtype=np.int32), weights
    )
