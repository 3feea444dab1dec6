"""Sizes of GNMT, its parameter count, its initial weights and random sentences. NumPy only.

Source: Wu et al., Google's neural machine translation system, 2016, sections 3 to 3.2 and 4: eight LSTM layers on either side,
the encoder's first bidirectional, residual connections from the third layer on, attention by a network of one hidden layer whose
context goes to every layer above the decoder's first, from whose output it is found. Both languages share one embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from models.contract import Array, Batch, Reads, Weights
from models.layers.images import Shapes
from models.layers.sequences import check_sizes

PADDING, START = 0, 1
LONGEST = 50  # word pieces of a sentence
RESIDUAL_FROM = 2
NEVER = -1e9  # the score of a word that is not there: its share is 0 in every precision


@dataclass(frozen=True)
class Spec:
    """vocabulary: word pieces, 0 is padding and 1 begins a sentence. width: of every layer. layers: on either side.

    lstm: one of `models.lstms.IMPLEMENTATIONS`; it shapes no weight.
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
        """Numbers that each layer is given a word, by side."""
        return {
            "encoder": [self.width, 2 * self.width, *[self.width] * (self.layers - 2)],
            "decoder": [self.width, *[2 * self.width] * (self.layers - 1)],
        }


SIZES = {"paper": Spec(), "tiny": Spec(vocabulary=50, width=16, layers=3)}


def sized(size: str, *, lstm: str = "layer", **_: str) -> Spec:
    """size: `paper` or `tiny`."""
    return replace(SIZES[size], lstm=lstm)


def shapes(spec: Spec) -> Shapes:
    """Name -> shape of every weight, PyTorch's names and layouts. One bias vector per LSTM gate."""
    found = Shapes()
    found.embedding("embedding", spec.vocabulary, spec.width)
    for side, inputs in spec.inputs.items():
        for index, size in enumerate(inputs):
            both_ways = (side, index) == ("encoder", 0)
            found.lstm(f"{side}.{index}", spec.width, size, bidirectional=both_ways)
    found["query.weight"] = found["key.weight"] = (spec.width, spec.width)
    found["score.weight"] = (1, spec.width)
    found.linear("words", spec.vocabulary, spec.width)
    return found


def initial_weights(spec: Spec, rng: np.random.Generator) -> Weights:
    """Embeddings N(0, 1/width), everything else U(±1/√width)."""
    weights: Weights = {}
    for name, shape in shapes(spec).items():
        drawn = (
            rng.standard_normal(shape) if name == "embedding.weight" else rng.uniform(-1, 1, shape)
        )
        weights[name] = (drawn / sqrt(spec.width)).astype(np.float32)
    return weights


def lengths(size: str, count: int, rng: np.random.Generator) -> Array:
    """int (count,): word pieces of so many sentences, log-normal around 25 and between 3 and 50; `tiny`: a fifth of that."""
    pieces = np.clip(25 * np.exp(0.5 * rng.standard_normal(count)), 3, LONGEST) / (
        1 if size == "paper" else 5
    )
    found: Array = np.maximum(np.round(pieces), 2).astype(np.int64)
    return found


def batch(spec: Spec, lengths: Array, rng: np.random.Generator) -> Batch:
    """Random pairs of sentences, padded to the longest; both of a pair are of one length.

    inputs: source int32 (n, words), lengths int32 (n,), target int32 (n, words), one word behind what is to be said.
    targets: int32 (n · words,), weights 0 where a sentence has ended.
    """
    shape = (len(lengths), int(lengths.max()))
    there = np.arange(shape[1]) < lengths[:, None]
    source, said = (
        np.where(there, rng.integers(2, spec.vocabulary, shape), PADDING).astype(np.int32)
        for _ in range(2)
    )
    return batch_of(spec, rng, (source, lengths), (said, lengths))


def reads(spec: Spec) -> Reads:
    """Pairs of sentences, neither longer than the longest random one: attention is of length × length × width."""
    return Reads("sentence_pairs", {"vocabulary": spec.vocabulary}, longest=LONGEST)


def batch_of(
    _: Spec, __: np.random.Generator, source: tuple[Array, Array], said: tuple[Array, Array]
) -> Batch:
    """Either: int32 (n, words), padded, and how many there are in each row; of `said` each is to be predicted."""
    (words, lengths), (targets, spoken) = source, said
    behind = np.insert(targets[:, :-1], 0, START, axis=1)
    there = np.arange(targets.shape[1]) < spoken[:, None]
    return Batch(
        (words, lengths.astype(np.int32), behind), targets.ravel(), there.ravel().astype(np.float32)
    )


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """A small version, or the paper's, and a batch of several lengths for the parity gate."""
    spec = SIZES["paper" if full else "tiny"]
    return spec, batch(spec, np.array([7, 3, 5, 2]), rng)
