"""Spectrograms of recorded speech and its letters, for a recogniser with CTC."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np

from experiments.datasets.files import refused
from experiments.datasets.sequences import features, speech
from experiments.datasets.sequences.raw import SequenceSource, chosen
from experiments.datasets.sequences.speech import Utterance
from models.contract import Array

SYMBOLS = " 'abcdefghijklmnopqrstuvwxyz"  # from 1 on; 0 is the blank
FRAMES_A_STEP = 2  # the network's convolutions leave every second frame


def find(path: Path, *, longest: int | None, bins: int) -> SequenceSource:  # noqa: ARG001
    """Return examples of two parts: frames (F, bins), float32, and symbols, int32."""
    rows = speech.utterances(path)
    return SequenceSource(
        path,
        speech.key(rows, path),
        lambda rng: (len(rows), (_example(rows[row], bins) for row in chosen(len(rows), rng))),
    )


def _example(utterance: Utterance, bins: int) -> tuple[Array, Array]:
    rate, samples = utterance.samples()
    frames, letters = features.log_spectrogram(samples, rate, bins), symbols(utterance)
    # CTC needs a frame for each symbol, and a blank between two equal ones.
    needed = len(letters) + int((letters[1:] == letters[:-1]).sum())
    steps = -(-len(frames) // FRAMES_A_STEP)
    if needed > steps:
        raise refused(
            utterance.where,
            f"{len(letters)} letters need {needed} frames, and {utterance.file.name} has "
            f"{steps}: is this its text?",
        )
    return frames, letters


def symbols(utterance: Utterance) -> Array:
    """Return letters a to z without accents, apostrophes and single spaces, as ids."""
    letters = unicodedata.normalize("NFKD", utterance.text.lower())
    text = " ".join("".join(letter for letter in letters if letter in SYMBOLS).split())
    if not text:
        raise refused(utterance.where, "has none of the letters a to z")
    return np.array([1 + SYMBOLS.index(letter) for letter in text], np.int32)
