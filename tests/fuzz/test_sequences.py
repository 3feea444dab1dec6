"""Damaged recordings, transcripts and sentences: each is read or refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from experiments.datasets.sequences.data import prepare
from models.contract import DataRequirements
from tests.experiments.datasets.recordings import librispeech, ljspeech
from tests.fuzz.corpus import Format, Target, check

QUICK, ALL = 100, 10_000
HEAD_BYTES = 44  # of a WAV file: all but its samples
TEXTS = ("one", "two, three", "four", "five six")


def recorded(folder: Path) -> list[Target]:
    ljspeech(folder, TEXTS)
    return [
        Target.head(folder / "wavs" / "LJ-0001.wav", HEAD_BYTES),
        Target.whole(folder / "metadata.csv"),
    ]


def transcribed(folder: Path) -> list[Target]:
    librispeech(folder, TEXTS)
    return [Target.whole(next(folder.rglob("*.trans.txt")))]


def sentences(folder: Path) -> list[Target]:
    (folder / "lines.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return [Target.whole(folder / "lines.txt")]


def pairs(folder: Path) -> list[Target]:
    for language in ("de", "en"):
        (folder / f"train.{language}").write_text("\n".join(TEXTS), encoding="utf-8")
    return [Target.whole(folder / "train.de")]


def read(reads: DataRequirements, folder: Path, _: Path) -> None:
    with TemporaryDirectory() as cache:
        options = {"any_length": False, "seed": 0, "cache": Path(cache)}
        sequences = prepare(str(folder), reads, **options, progress=lambda *_: None)
        assert all(np.isfinite(part).all() for part in sequences.parts)


FORMATS = {
    "LJSpeech": (recorded, DataRequirements("spectrograms", {"bins": 161})),
    "LibriSpeech": (
        transcribed,
        DataRequirements("mel_spectrograms", {"bins": 80, "characters": 148}),
    ),
    "sentences": (sentences, DataRequirements("sentences", {"vocabulary": 99}, longest=20)),
    "sentence pairs": (pairs, DataRequirements("sentence_pairs", {"vocabulary": 99}, longest=20)),
}
COUNTS = [(QUICK, 0), pytest.param(ALL // len(FORMATS), 1, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("count", "seed"), COUNTS)
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_sequences_are_read_or_refused(name: str, count: int, seed: int) -> None:
    write, reads = FORMATS[name]
    check(Format(write, partial(read, reads)), count, seed)
