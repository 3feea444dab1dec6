"""Sizes of BERT, its parameter count, its initial weights and batches of random sentences. NumPy only.

Source: Devlin et al., BERT: pre-training of deep bidirectional transformers for language understanding, NAACL 2019, sections 3
and 3.2 and appendix A: BERT-base, fine-tuned to classify sentences. Names are those of Hugging Face's `BertModel`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.contract import Array, Batch, ModelError, Reads, Weights
from models.layers.images import Shapes
from models.layers.sequences import check_sizes

EPSILON = 1e-12  # of every LayerNorm
PADDING = 0


@dataclass(frozen=True)
class Spec:
    """vocabulary: word pieces. width, layers, heads: of the encoder. intermediate: between the linear layers of a block.

    positions: the longest row; types: sentences of a row that are told apart. classes: of the classifier behind the pooler,
    dropout between them; None gives the pooled vectors (n, width), the 109,482,240 parameters that are called BERT-base.
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
        check_sizes(
            "bert",
            self,
            vocabulary=2,
            width=1,
            layers=1,
            heads=1,
            intermediate=1,
            positions=1,
            types=1,
        )
        if self.width % self.heads:
            raise ModelError(
                f"bert: width must be a multiple of heads, not {self.width} of {self.heads}"
            )
        if self.classes is not None and self.classes < 1:
            raise ModelError(f"bert: classes must be at least 1 or None, not {self.classes}")


# Heads of 16: the scale of attention is a power of two, which no framework rounds.
SIZES = {
    "paper": Spec(),
    "tiny": Spec(vocabulary=61, width=32, layers=2, heads=2, intermediate=48, positions=20),
}


def sized(size: str, **_: str) -> Spec:
    """size: `paper` or `tiny`. Further settings of sequences, such as `ctc`, are other models'."""
    return SIZES[size]


def lengths(size: str, count: int, rng: np.random.Generator) -> Array:
    """int (count,): word pieces of so many sentences, log-normal around 25 and between 4 and 128; `tiny`: around 6, 2 to 16."""
    middle, least, most = (25, 4, 128) if size == "paper" else (6, 2, 16)
    drawn = middle * np.exp(0.6 * rng.standard_normal(count))
    pieces: Array = np.round(np.clip(drawn, least, most)).astype(np.int64)
    return pieces


def shapes(spec: Spec) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight, in Hugging Face's names and PyTorch's layouts."""
    found, width = Shapes(), spec.width
    for name, rows in (
        ("word", spec.vocabulary),
        ("position", spec.positions),
        ("token_type", spec.types),
    ):
        found.embedding(f"embeddings.{name}_embeddings", rows, width)
    found.layer_norm("embeddings.LayerNorm", width)
    for index in range(spec.layers):
        path = f"encoder.layer.{index}"
        for name in ("query", "key", "value"):
            found.linear(f"{path}.attention.self.{name}", width, width)
        found.linear(f"{path}.attention.output.dense", width, width)
        found.layer_norm(f"{path}.attention.output.LayerNorm", width)
        found.linear(f"{path}.intermediate.dense", spec.intermediate, width)
        found.linear(f"{path}.output.dense", width, spec.intermediate)
        found.layer_norm(f"{path}.output.LayerNorm", width)
    found.linear("pooler.dense", width, width)
    if spec.classes is not None:
        found.linear("classifier", spec.classes, width)
    return found


def checkpoint_name(name: str) -> str | None:
    """Of a published file: it may put `bert.` before its names, and say gamma and beta of a LayerNorm.

    The heads of pre-training (`cls.`) and the numbers of the positions are no weights of this network.
    """
    if name.startswith("cls.") or name.endswith("embeddings.position_ids"):
        return None
    path, dot, last = name.removeprefix("bert.").rpartition(".")
    if path.endswith("LayerNorm"):
        last = {"gamma": "weight", "beta": "bias"}.get(last, last)
    return path + dot + last


def initial_weights(spec: Spec, rng: np.random.Generator) -> Weights:
    """Normal of deviation 0.02, drawn again beyond two deviations; biases 0, LayerNorms 1 and 0."""
    weights: Weights = {}
    for name, shape in shapes(spec).items():
        values = (
            _truncated_normal(shape, rng) * 0.02
            if len(shape) > 1
            else np.full(shape, "LayerNorm.weight" in name)
        )
        weights[name] = values.astype(np.float32)
    return weights


def _truncated_normal(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    values = rng.standard_normal(shape)
    while (beyond := np.abs(values) > 2).any():
        values[beyond] = rng.standard_normal(int(beyond.sum()))
    return values


def batch(spec: Spec, lengths: Array, rng: np.random.Generator) -> Batch:
    """Random word pieces and classes, rows padded to the longest.

    inputs, all int32: tokens (n, length), lengths (n,), types (n, length), which are zero: rows of one sentence.
    """
    rows, longest = len(lengths), int(lengths.max())
    tokens = rng.integers(1, spec.vocabulary, (rows, longest), dtype=np.int32)
    tokens[np.arange(longest) >= lengths[:, None]] = PADDING
    return batch_of(spec, rng, (tokens, lengths))


def reads(spec: Spec) -> Reads:
    """Sentences; the words of a sentence and its two marks are at most as many as there are positions."""
    return Reads("sentences", {"vocabulary": spec.vocabulary}, longest=spec.positions)


def batch_of(spec: Spec, rng: np.random.Generator, tokens: tuple[Array, Array]) -> Batch:
    """Sentences with random classes. tokens: int32 (n, length), padded, and how many there are in each row."""
    padded, lengths = tokens
    targets = rng.integers(0, spec.classes or 1, len(padded), dtype=np.int32)
    return Batch(
        (padded, lengths.astype(np.int32), np.zeros_like(padded)),
        targets,
        np.ones(len(padded), np.float32),
    )


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """A small version, or the paper's, and a batch of several lengths for the parity gate, with rows of two sentences."""
    spec = SIZES["paper" if full else "tiny"]
    found = batch(spec, np.array([9, 14, 5, 16, 1, 11]), rng)
    tokens, lengths, types = found.inputs
    types[:] = (np.arange(types.shape[1]) >= lengths[:, None] // 2) * (tokens != PADDING)
    found.weights[-1] = 0
    return spec, found
