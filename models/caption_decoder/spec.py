"""Sizes of the caption decoder, its expected parameter count and its initial weights. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from models.contract import Batch, ModelError, Weights


@dataclass(frozen=True)
class CaptionDecoderSpec:
    """vocabulary: number of token ids, 0 is padding. length: longest caption in tokens; it shapes no weight.

    features: numbers per image. width: embedding and LSTM size. hidden: the layer before the vocabulary.
    """

    vocabulary: int
    length: int
    features: int = 1920
    width: int = 256
    hidden: int = 128
    dropout: float = 0.5

    def __post_init__(self) -> None:
        for name in ("vocabulary", "length", "features", "width", "hidden"):
            if getattr(self, name) < 1:
                raise ModelError(f"caption_decoder: {name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ModelError(f"caption_decoder: dropout must be in [0, 1), not {self.dropout}")


def shapes(spec: CaptionDecoderSpec) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight, PyTorch's names and layouts. One bias vector per LSTM gate."""
    gates = 4 * spec.width
    return {
        "image.weight": (spec.width, spec.features),
        "image.bias": (spec.width,),
        "embedding.weight": (spec.vocabulary, spec.width),
        "lstm.weight_ih_l0": (gates, spec.width),
        "lstm.weight_hh_l0": (gates, spec.width),
        "lstm.bias_ih_l0": (gates,),
        "merge.weight": (spec.hidden, spec.width),
        "merge.bias": (spec.hidden,),
        "words.weight": (spec.vocabulary, spec.hidden),
        "words.bias": (spec.vocabulary,),
    }


def parameters(spec: CaptionDecoderSpec) -> tuple[int, int]:
    """Expected (trainable, non-trainable) parameters."""
    return sum(prod(shape) for shape in shapes(spec).values()), 0


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


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[CaptionDecoderSpec, Batch]:
    """A small version, or Flickr8k's, and a batch for the parity gate: ragged captions with repeated tokens.

    Its dropout is not the default, which a campaign may change: a rate that one side had written down would show.
    """
    spec = CaptionDecoderSpec(vocabulary=61, length=7, features=40, width=24, hidden=12, dropout=0.3)
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
    return spec, Batch(inputs, rng.integers(1, spec.vocabulary, len(weights), dtype=np.int32), weights)
