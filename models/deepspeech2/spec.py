"""Sizes of Deep Speech 2, its parameter count, its initial weights and batches of random speech. NumPy only.

Source: Amodei et al., Deep Speech 2: end-to-end speech recognition in English and Mandarin, ICML 2016, sections 3.1 to 3.4:
two-dimensional convolutions (41 × 11 with strides 2 × 2, 21 × 11 with 2 × 1; bins × frames), sequence-wise BatchNorm, ReLU
clipped at 20, bidirectional layers whose directions are summed, one linear layer, CTC. Its recurrent layers are LSTMs here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import Any

import numpy as np

from models.contract import Array, Batch, ModelError, Reads, Weights
from models.layers.images import Shapes
from models.layers.sequences import check_sizes

KERNELS = ((11, 41), (11, 21))  # frames × bins
STRIDES = ((2, 2), (1, 2))
CLIPPED_AT = 20.0
BLANK = 0
CTC = ("scan", "sparse", "dense", "keras")


@dataclass(frozen=True)
class Spec:
    """features: bins of the spectrogram. channels: of both convolutions. width, layers: of the LSTMs.

    symbols: letters, space, apostrophe and the blank, which is 0. ctc: which loss TensorFlow and Keras take, one of `CTC`;
    PyTorch has one alone. lstm: one of `models.lstms.IMPLEMENTATIONS`. Neither shapes a weight.
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
            raise ModelError(f"deepspeech2: no ctc {self.ctc!r}; have {', '.join(CTC)}")

    @property
    def bins(self) -> int:
        """Bins that are left behind the convolutions."""
        return -(-self.features // 4)


SIZES = {"paper": Spec(), "tiny": Spec(features=33, channels=4, width=24, layers=2)}


def sized(size: str, *, ctc: str = "scan", lstm: str = "layer") -> Spec:
    """size: `paper` or `tiny`."""
    return replace(SIZES[size], ctc=ctc, lstm=lstm)


def lengths(size: str, count: int, rng: np.random.Generator) -> Array:
    """int (count,): frames of so many utterances, log-normal around 10 s and between 1 and 17 s; `tiny`: a tenth of that."""
    seconds = np.clip(10 * np.exp(0.5 * rng.standard_normal(count)), 1, 17)
    frames: Array = np.round(seconds * (100 if size == "paper" else 10)).astype(np.int64)
    return frames


def frames_left(frames: Any) -> Any:
    """Frames behind the convolutions, of so many before: an array of any framework."""
    return (frames + 1) // 2


def shapes(spec: Spec) -> Shapes:
    """Name -> shape of every weight and running statistic, PyTorch's names and layouts. One bias vector per LSTM gate."""
    found = Shapes()
    for index, kernel in enumerate(KERNELS):
        found.convolution(
            f"convolutions.{index}", spec.channels, spec.channels if index else 1, kernel
        )
        found.norm(f"norms.{index}", spec.channels)
    for index in range(spec.layers):
        inputs = spec.width if index else spec.channels * spec.bins
        found.lstm(f"lstms.{index}", spec.width, inputs, bidirectional=True)
        found.norm(f"sequence_norms.{index}", spec.width)
    found.linear("symbols", spec.symbols, spec.width)
    return found


def initial_weights(spec: Spec, rng: np.random.Generator) -> Weights:
    """He-normal convolutions (fan in), identity norms, LSTM U(±1/√width), linear U(±1/√fan_in)."""
    weights: Weights = {}
    for name, shape in shapes(spec).items():
        if name.startswith("convolutions"):
            values = rng.standard_normal(shape) * sqrt(2 / prod(shape[1:]))
        elif name.startswith(("lstms", "symbols")):
            values = rng.uniform(-1, 1, shape) / sqrt(spec.width)
        else:
            values = (
                np.ones(shape) if name.endswith((".weight", ".running_var")) else np.zeros(shape)
            )
        weights[name] = values.astype(np.float32)
    return weights


def batch(spec: Spec, lengths: Array, rng: np.random.Generator) -> Batch:
    """Random spectrograms and transcripts, padded to the longest.

    lengths: int (n,), frames; a transcript has a symbol every six frames or so: 10 ms a frame, 16 symbols a second.
    inputs: features (n, frames, bins), lengths (n,). targets: int32 (n, symbols), 0 where a transcript is shorter.
    """
    rows, frames = len(lengths), int(lengths.max())
    features = rng.standard_normal((rows, frames, spec.features)).astype(np.float32)
    features[np.arange(frames) >= lengths[:, None]] = 0
    spoken = np.maximum(lengths // 6, 1)
    targets = rng.integers(1, spec.symbols, (rows, int(spoken.max())), dtype=np.int32)
    targets[np.arange(targets.shape[1]) >= spoken[:, None]] = BLANK
    return batch_of(spec, rng, (features, lengths), (targets, spoken))


def reads(spec: Spec) -> Reads:
    """Recorded speech with its letters."""
    return Reads("spectrograms", {"bins": spec.features})


def batch_of(
    _: Spec, __: np.random.Generator, heard: tuple[Array, Array], said: tuple[Array, Array]
) -> Batch:
    """heard: features (n, frames, bins), padded, and the frames of each row. said: symbols int32 (n, symbols), and how many."""
    features, lengths = heard
    return Batch((features, lengths.astype(np.int32)), said[0], np.ones(len(features), np.float32))


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """A small version, or the paper's, and a batch of several lengths for the parity gate, with letters said twice."""
    spec = SIZES["paper" if full else "tiny"]
    lengths = np.array([31, 24, 12, 7, 18])
    found = batch(spec, lengths, rng)
    found.targets[0, 1:3] = found.targets[0, 1]
    found.weights[-1] = 0
    return spec, found
