"""Spectrograms of recorded speech and the letters that are said, as a recogniser with CTC takes them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.datasets.labelled.checks import refused
from experiments.datasets.sequences import features, speech, wav
from experiments.datasets.sequences.raw import Found, chosen
from experiments.datasets.sequences.speech import Utterance
from models.contract import Array

SYMBOLS = " 'abcdefghijklmnopqrstuvwxyz"  # from 1 on; 0 is the blank
FRAMES_A_STEP = 2  # the network's convolutions leave every second frame


def find(path: Path, *, longest: int | None, bins: int) -> Found:  # noqa: ARG001 - an utterance lasts as long as wav.py lets it
    """Examples of two parts: frames (F, bins), float32, and symbols, int32."""
    found = speech.utterances(path)
    return Found(path, speech.key(found, path), lambda rng: _read(found, bins, rng))


def _read(
    found: list[Utterance], bins: int, rng: np.random.Generator
) -> tuple[int, Iterator[tuple[Array, ...]]]:
    return len(found), (_example(found[row], bins) for row in chosen(len(found), rng))


def _example(one: Utterance, bins: int) -> tuple[Array, Array]:
    rate, samples = wav.read(one.file)
    heard, said = features.log_spectrogram(samples, rate, bins), symbols(one)
    # CTC needs a frame for each symbol, and a blank between two that are alike
    needed = len(said) + int((said[1:] == said[:-1]).sum())
    if needed > (have := -(-len(heard) // FRAMES_A_STEP)):
        raise refused(
            one.where,
            f"{len(said)} letters need {needed} frames, and {one.file.name} has {have}: is this its text?",
        )
    return heard, said


def symbols(one: Utterance) -> Array:
    """Letters a to z without accents, apostrophes and single spaces; all else is left out. Raises WrongCall where nothing is."""
    letters = unicodedata.normalize("NFKD", one.text.lower())
    kept = " ".join("".join(letter for letter in letters if letter in SYMBOLS).split())
    if not kept:
        raise refused(one.where, "has none of the letters a to z")
    return np.array([1 + SYMBOLS.index(letter) for letter in kept], np.int32)
