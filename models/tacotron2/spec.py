"""Sizes of Tacotron 2, its initial weights and random speech. NumPy only.

Source: Shen et al., Natural TTS synthesis by conditioning WaveNet on mel spectrogram predictions,
ICASSP 2018, sections 2.2 and 2.3; the attention is that of Chorowski et al., Attention-based models
for speech recognition, 2015, section 2.1, over the sum of the shares so far. The first of the
decoder's LSTMs asks. Zoneout is left out, and the dropout before the decoder is one of training
only, as each other one: the paper keeps it on when it speaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from models.contract import Array, Batch, ErrorCode, ModelError, Weights
from models.layers.images import Shapes
from models.sequences import check_sizes, draw_weights, is_inside, log_normal

KERNEL = 5
CONVOLUTIONS, POSTNET = 3, 5
PADDING = 0


@dataclass(frozen=True)
class Spec:
    """Sizes of Tacotron 2.

    Attributes:
        characters: Number of characters, 0 is padding.
        width: Width of the encoder.
        bins: Bins of the mel spectrogram.
        prenet: Width of the two layers before the decoder.
        decoder: Width of the decoder's two LSTMs.
        attention: Hidden width of the attention.
        filters: Filters of the attention's convolution.
        reach: Size of the attention's convolution.
        dropout: Rate of each dropout.
        lstm: Encoder's LSTM, one of `models.lstms.IMPLEMENTATIONS`; it shapes no weight.
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
            reason = "width must be even, for two directions, and reach odd, for a middle"
            raise ModelError(ErrorCode.INVALID_VALUE, f"tacotron2: {reason}")

    @property
    def lstms(self) -> dict[str, tuple[int, int]]:
        return {
            "asking": (self.prenet + self.width, self.decoder),
            "speaking": (self.decoder, self.decoder),
        }

    @property
    def postnet(self) -> list[tuple[int, int]]:
        return [
            (self.bins, self.width),
            *[(self.width, self.width)] * (POSTNET - 2),
            (self.width, self.bins),
        ]


LENGTHS_AT = 3
SIZES = {
    "paper": Spec(),
    "tiny": Spec(
        characters=20, width=16, bins=6, prenet=8, decoder=12, attention=6, filters=3, reach=5
    ),
}


def shapes(spec: Spec) -> Shapes:
    arrays = Shapes({"embedding.weight": (spec.characters, spec.width)})
    for index in range(CONVOLUTIONS):
        arrays[f"convolutions.{index}.weight"] = (spec.width, spec.width, KERNEL)
        arrays.norm(f"norms.{index}", spec.width)
    arrays.lstm("encoder", spec.width // 2, spec.width, bidirectional=True)
    arrays["prenet.0.weight"] = (spec.prenet, spec.bins)
    arrays["prenet.1.weight"] = (spec.prenet, spec.prenet)
    for name, (inputs, width) in spec.lstms.items():
        arrays[f"{name}.weight_ih"] = (4 * width, inputs)
        arrays[f"{name}.weight_hh"] = (4 * width, width)
        arrays[f"{name}.bias_ih"] = (4 * width,)
    arrays |= {
        "query.weight": (spec.attention, spec.decoder),
        "key.weight": (spec.attention, spec.width),
        "place.weight": (spec.filters, 1, spec.reach),
        "where.weight": (spec.attention, spec.filters),
        "score.weight": (1, spec.attention),
    }
    arrays.linear("frame", spec.bins, spec.decoder + spec.width)
    arrays.linear("stop", 1, spec.decoder + spec.width)
    for index, (inputs, outputs) in enumerate(spec.postnet):
        arrays[f"postnet.{index}.weight"] = (outputs, inputs, KERNEL)
        arrays.norm(f"postnet_norms.{index}", outputs)
    return arrays


def initial_weights(spec: Spec, rng: np.random.Generator) -> Weights:
    """Draw U(±1/√fan_in), LSTMs by their width."""

    def draw(name: str, shape: tuple[int, ...]) -> Array:
        fan = prod(shape[1:])
        if "_ih" in name or "_hh" in name:
            fan = shape[0] // 4
        return rng.uniform(-1, 1, shape) / sqrt(fan)

    return draw_weights(shapes(spec), draw)


def lengths(size: str, count: int, rng: np.random.Generator) -> Array:
    """Draw lengths of random examples.

    Args:
        size: Name in `SIZES`.
        count: Number of examples.
        rng: Draws them.

    Returns:
        int64 (count,). Frames: around 6 s, from 1 to 10 s; 80 a second, `tiny`: 4.
    """
    seconds = log_normal(rng, count, 6, 0.4, 1, 10)
    return np.round(seconds * (80 if size == "paper" else 4)).astype(np.int64)


def batch(spec: Spec, lengths: Array, rng: np.random.Generator) -> Batch:
    """Return random characters and spectrograms, padded to the longest; six frames a character.

    Returns:
        inputs: characters, their number int32 (n,), the frame before each one (n, F, bins),
        frames int32 (n,); targets float32 (n, F, bins), 0 behind the end.
    """
    counts = np.maximum(lengths // 6, 1).astype(np.int32)
    inside = is_inside(counts)
    characters = rng.integers(1, spec.characters, inside.shape, dtype=np.int32)
    characters[~inside] = PADDING
    inside = is_inside(lengths)
    mel = rng.standard_normal((*inside.shape, spec.bins)).astype(np.float32)
    mel[~inside] = 0
    before = np.concatenate([np.zeros_like(mel[:, :1]), mel[:, :-1]], axis=1)
    inputs = (characters, counts, before, lengths.astype(np.int32))
    return Batch(inputs, mel, np.ones(len(mel), np.float32))


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    spec = SIZES["paper" if full else "tiny"]
    sentences = batch(spec, np.array([14, 26, 9, 20]), rng)
    sentences.weights[-1] = 0
    return spec, sentences
