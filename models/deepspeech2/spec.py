"""Sizes of Deep Speech 2, its initial weights and batches of random speech. NumPy only.

Source: Amodei et al., Deep Speech 2: end-to-end speech recognition in English and Mandarin, ICML
2016, sections 3.1 to 3.4: two-dimensional convolutions (41 × 11 with strides 2 × 2, 21 × 11 with
2 × 1; bins × frames), sequence-wise BatchNorm, ReLU clipped at 20, bidirectional layers whose
directions are summed, one linear layer, CTC. Its recurrent layers are LSTMs here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np

from models.contract import Array, Batch, ErrorCode, ModelError, Weights
from models.layers.images import Shapes
from models.sequences import check_sizes, draw_weights, is_inside, log_normal

KERNELS = ((11, 41), (11, 21))  # frames × bins
STRIDES = ((2, 2), (1, 2))
CLIPPED_AT = 20.0
BLANK = 0
CTC = ("scan", "sparse", "dense", "keras")


@dataclass(frozen=True)
class Spec:
    """Sizes of Deep Speech 2.

    Attributes:
        features: Bins of the spectrogram.
        channels: Channels of both convolutions.
        width: Width of the LSTMs.
        layers: Number of LSTMs.
        symbols: Letters, space, apostrophe and the blank, which is 0.
        ctc: Loss of TensorFlow and Keras, one of `CTC`; PyTorch has one only.
        lstm: One of `models.lstms.IMPLEMENTATIONS`.
    """

    features: int = 161
    channels: int = 32
    width: int = 800
    layers: int = 5
    symbols: int = 29
    ctc: str = "scan"
    lstm: str = "layer"

    def __post_init__(self) -> None:
        check_sizes("deepspeech2", self, features=1, channels=1, width=1, layers=1, symbols=2)
        if self.ctc not in CTC:
            raise ModelError(
                ErrorCode.UNKNOWN_NAME, f"deepspeech2: no ctc {self.ctc!r}; have {', '.join(CTC)}"
            )

    @property
    def bins(self) -> int:
        return -(-self.features // 4)


LENGTHS_AT = 1
SIZES = {"paper": Spec(), "tiny": Spec(features=33, channels=4, width=24, layers=2)}


def lengths(size: str, count: int, rng: np.random.Generator) -> Array:
    """Draw lengths of random examples.

    Args:
        size: Name in `SIZES`.
        count: Number of examples.
        rng: Draws them.

    Returns:
        int64 (count,). Frames: around 10 s, from 1 to 17 s; `tiny`: a tenth of that.
    """
    seconds = log_normal(rng, count, 10, 0.5, 1, 17)
    return np.round(seconds * (100 if size == "paper" else 10)).astype(np.int64)


def frames_left(frames: Any) -> Any:
    """Return the lengths behind the convolutions.

    Args:
        frames: Lengths of utterances, an integer array of any framework.
    """
    return (frames + 1) // 2


def shapes(spec: Spec) -> Shapes:
    arrays = Shapes()
    for index, kernel in enumerate(KERNELS):
        arrays.convolution(
            f"convolutions.{index}", spec.channels, spec.channels if index else 1, kernel
        )
        arrays.norm(f"norms.{index}", spec.channels)
    for index in range(spec.layers):
        inputs = spec.width if index else spec.channels * spec.bins
        arrays.lstm(f"lstms.{index}", spec.width, inputs, bidirectional=True)
        arrays.norm(f"sequence_norms.{index}", spec.width)
    arrays.linear("symbols", spec.symbols, spec.width)
    return arrays


def initial_weights(spec: Spec, rng: np.random.Generator) -> Weights:
    """Draw He-normal convolutions (fan in); LSTMs and the linear layer U(±1/√width)."""

    def draw(name: str, shape: tuple[int, ...]) -> Array:
        if name.startswith("convolutions"):
            return rng.standard_normal(shape) * sqrt(2 / prod(shape[1:]))
        return rng.uniform(-1, 1, shape) / sqrt(spec.width)

    return draw_weights(shapes(spec), draw)


def batch(spec: Spec, lengths: Array, rng: np.random.Generator) -> Batch:
    """Return random spectrograms and transcripts, padded to the longest.

    A transcript has a symbol every six frames: 10 ms a frame, 16 symbols a second.
    """
    inside = is_inside(lengths)
    features = rng.standard_normal((*inside.shape, spec.features)).astype(np.float32)
    features[~inside] = 0
    symbols = np.maximum(lengths // 6, 1)
    inside = is_inside(symbols)
    targets = rng.integers(1, spec.symbols, inside.shape, dtype=np.int32)
    targets[~inside] = BLANK
    ones = np.ones(len(features), np.float32)
    return Batch((features, lengths.astype(np.int32)), targets, ones)


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """Return a small version, or the paper's, and utterances with a repeated letter."""
    spec = SIZES["paper" if full else "tiny"]
    utterances = batch(spec, np.array([31, 24, 12, 7, 18]), rng)
    utterances.targets[0, 1:3] = utterances.targets[0, 1]
    utterances.weights[-1] = 0
    return spec, utterances
