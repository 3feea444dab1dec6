"""Characters of a sentence and the mel spectrogram of its recording, for a network that speaks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from experiments.datasets.sequences import features, raw, speech
from experiments.datasets.sequences.raw import SequenceSource
from models.contract import Array

UNKNOWN = 1  # 0 is padding


def find(
    path: Path,
    *,
    longest: int | None,  # noqa: ARG001
    bins: int,
    characters: int,
) -> SequenceSource:
    """Return examples of two parts: frames (F, bins), float32, and ids of characters, int32."""
    rows = speech.utterances(path)

    def read(rng: np.random.Generator) -> raw.Examples:
        counts = Counter(letter for row in rows for letter in row.text.lower())
        ids = raw.numbered(counts, UNKNOWN + 1, characters)

        def example(row: speech.Utterance) -> tuple[Array, Array]:
            rate, samples = row.samples()
            letters = np.array([ids.get(letter, UNKNOWN) for letter in row.text.lower()], np.int32)
            return features.log_mel(samples, rate, bins), letters

        return len(rows), (example(rows[row]) for row in raw.chosen(len(rows), rng))

    return SequenceSource(path, speech.key(rows, path), read)
