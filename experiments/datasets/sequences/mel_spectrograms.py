"""Characters of a sentence and the mel spectrogram of its recording, as a network that speaks takes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.datasets.sequences import features, speech, wav
from experiments.datasets.sequences.raw import Found, chosen, numbered
from experiments.datasets.sequences.speech import Utterance
from models.contract import Array

UNKNOWN = 1  # 0 is padding


def find(path: Path, *, longest: int | None, bins: int, characters: int) -> Found:  # noqa: ARG001 - as long as wav.py lets it
    """Examples of two parts: frames (F, bins), float32, and ids of characters, int32."""
    found = speech.utterances(path)
    return Found(path, speech.key(found, path), lambda rng: _read(found, bins, characters, rng))


def _read(
    found: list[Utterance], bins: int, characters: int, rng: np.random.Generator
) -> tuple[int, Iterator[tuple[Array, ...]]]:
    ids = numbered(
        Counter(letter for one in found for letter in one.text.lower()), UNKNOWN + 1, characters
    )
    return len(found), (_example(found[row], ids, bins) for row in chosen(len(found), rng))


def _example(one: Utterance, ids: dict[str, int], bins: int) -> tuple[Array, Array]:
    rate, samples = wav.read(one.file)
    said = np.array([ids.get(letter, UNKNOWN) for letter in one.text.lower()], np.int32)
    return features.log_mel(samples, rate, bins), said
