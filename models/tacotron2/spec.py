"""Sizes of Tacotron 2, its parameter count, its initial weights and random speech. NumPy only.

Source: Shen et al., Natural TTS synthesis by conditioning WaveNet on mel spectrogram predictions, ICASSP 2018, sections 2.2 and
2.3; the attention is that of Chorowski et al., Attention-based models for speech recognition, 2015, section 2.1, over the sum of
the shares so far. The first of the decoder's LSTMs asks. Zoneout is left out, and the dropout before the decoder is one of
training alone, as every other: the paper keeps it on when it speaks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod, sqrt

import numpy as np

from models.contract import Array, Batch, ModelError, Reads, Weights
from models.layers.images import Shapes
from models.layers.sequences import check_sizes

KERNEL = 5
CONVOLUTIONS, POSTNET = 3, 5
PADDING = 0
NEVER = -1e9  # the score of a character that is not there


@dataclass(frozen=True)
class Spec:
    """characters: 0 is padding. width: of the encoder. bins: of the mel spectrogram. decoder: width of its two LSTMs.

    prenet: width of the two layers before the decoder. attention: hidden width; filters, reach: of its convolution.
    lstm: of the encoder, one of `models.lstms.IMPLEMENTATIONS`; it shapes no weight.
    """

    characters: int = 148
    width: int = 512
    bins: int = 80
    prenet: int = 256
    decoder: int = 1_024
    attention: int = 128
    filters: int = 32
    reach: int = 31
    dropout: float = 0.5
    lstm: str = "layer"

    def __post_init__(self) -> None:
        ones = dict.fromkeys(("bins", "prenet", "decoder", "attention", "filters", "reach"), 1)
        check_sizes("tacotron2", self, characters=2, width=2, **ones)
        if self.width % 2 or not self.reach % 2:
            raise ModelError(
                "tacotron2: width must be even, for two directions, and reach odd, for a middle"
            )

    @property
    def lstms(self) -> dict[str, tuple[int, int]]:
        """(inputs, width) of the decoder's LSTM cells, by name."""
        return {
            "asking": (self.prenet + self.width, self.decoder),
            "speaking": (self.decoder, self.decoder),
        }

    @property
    def postnet(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of the convolutions that correct the spectrogram."""
        return [
            (self.bins, self.width),
            *[(self.width, self.width)] * (POSTNET - 2),
            (self.width, self.bins),
        ]


SIZES = {
    "paper": Spec(),
    "tiny": Spec(
        characters=20, width=16, bins=6, prenet=8, decoder=12, attention=6, filters=3, reach=5
    ),
}


def sized(size: str, *, lstm: str = "layer", **_: str) -> Spec:
    """size: `paper` or `tiny`."""
    return replace(SIZES[size], lstm=lstm)


def shapes(spec: Spec) -> Shapes:
    """Name -> shape of every weight and running statistic, PyTorch's names and layouts. One bias vector per LSTM gate."""
    found = Shapes({"embedding.weight": (spec.characters, spec.width)})
    for index in range(CONVOLUTIONS):
        found[f"convolutions.{index}.weight"] = (spec.width, spec.width, KERNEL)
        found.norm(f"norms.{index}", spec.width)
    half = spec.width // 2
    for direction in ("", "_reverse"):
        _lstm(found, "encoder", "_l0" + direction, spec.width, half)
    found |= {
        "prenet.0.weight": (spec.prenet, spec.bins),
        "prenet.1.weight": (spec.prenet, spec.prenet),
    }
    for name, (inputs, width) in spec.lstms.items():
        _lstm(found, name, "", inputs, width)
    found |= {
        "query.weight": (spec.attention, spec.decoder),
        "key.weight": (spec.attention, spec.width),
    }
    found |= {
        "place.weight": (spec.filters, 1, spec.reach),
        "where.weight": (spec.attention, spec.filters),
    }
    found |= {"score.weight": (1, spec.attention)}
    found.linear("frame", spec.bins, spec.decoder + spec.width)
    found.linear("stop", 1, spec.decoder + spec.width)
    for index, (inputs, outputs) in enumerate(spec.postnet):
        found[f"postnet.{index}.weight"] = (outputs, inputs, KERNEL)
        found.norm(f"postnet_norms.{index}", outputs)
    return found


def _lstm(found: Shapes, path: str, suffix: str, inputs: int, width: int) -> None:
    found[f"{path}.weight_ih{suffix}"] = (4 * width, inputs)
    found[f"{path}.weight_hh{suffix}"] = (4 * width, width)
    found[f"{path}.bias_ih{suffix}"] = (4 * width,)


def initial_weights(spec: Spec, rng: np.random.Generator) -> Weights:
    """Identity norms; everything else U(±1/√fan_in), LSTMs by their width."""
    weights: Weights = {}
    for name, shape in shapes(spec).items():
        if "norms" in name:
            values = (
                np.ones(shape) if name.endswith((".weight", ".running_var")) else np.zeros(shape)
            )
        else:
            fan = shape[0] // 4 if "_ih" in name or "_hh" in name else prod(shape[1:]) or shape[0]
            values = rng.uniform(-1, 1, shape) / sqrt(fan)
        weights[name] = values.astype(np.float32)
    return weights


def lengths(size: str, count: int, rng: np.random.Generator) -> Array:
    """int (count,): frames of so many sentences, log-normal around 6 s and between 1 and 10 s; 80 a second, `tiny`: 4."""
    seconds = np.clip(6 * np.exp(0.4 * rng.standard_normal(count)), 1, 10)
    found: Array = np.round(seconds * (80 if size == "paper" else 4)).astype(np.int64)
    return found


def batch(spec: Spec, lengths: Array, rng: np.random.Generator) -> Batch:
    """Random characters and spectrograms, padded to the longest. lengths: int (n,), frames; a character lasts about six.

    inputs: characters int32 (n, C), their number int32 (n,), the frame before each one (n, F, bins), frames int32 (n,).
    targets: float32 (n, F, bins), 0 behind the end.
    """
    rows, frames = len(lengths), int(lengths.max())
    spoken = np.maximum(lengths // 6, 1).astype(np.int32)
    characters = rng.integers(1, spec.characters, (rows, int(spoken.max())), dtype=np.int32)
    characters[np.arange(characters.shape[1]) >= spoken[:, None]] = PADDING
    mel = rng.standard_normal((rows, frames, spec.bins)).astype(np.float32)
    mel[np.arange(frames) >= lengths[:, None]] = 0
    return batch_of(spec, rng, (mel, lengths), (characters, spoken))


def reads(spec: Spec) -> Reads:
    """Recorded speech with its characters."""
    return Reads("mel_spectrograms", {"bins": spec.bins, "characters": spec.characters})


def batch_of(
    _: Spec, __: np.random.Generator, spoken: tuple[Array, Array], said: tuple[Array, Array]
) -> Batch:
    """spoken: (n, F, bins), padded, and the frames of each row. said: characters int32 (n, C), padded, and how many."""
    (mel, frames), (characters, count) = spoken, said
    before = np.concatenate([np.zeros_like(mel[:, :1]), mel[:, :-1]], axis=1)
    inputs = (characters, count.astype(np.int32), before, frames.astype(np.int32))
    return Batch(inputs, mel, np.ones(len(mel), np.float32))


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """A small version, or the paper's, and a batch of several lengths for the parity gate."""
    spec = SIZES["paper" if full else "tiny"]
    found = batch(spec, np.array([14, 26, 9, 20]), rng)
    found.weights[-1] = 0
    return spec, found
