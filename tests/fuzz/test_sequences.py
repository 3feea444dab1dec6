"""Damaged recordings, transcripts and sentences: read, or one line; never a traceback, gigabytes or minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from experiments.datasets.sequences.data import prepare
from models.contract import Reads
from tests.experiments.datasets.recordings import librispeech, ljspeech
from tests.fuzz.corpus import Outcome, bounded, mutations, outcome
from tracking.errors import WrongCall

QUICK, ALL = 160, 10_000
HEAD_BYTES = 44  # of a WAV file: all but its samples
MAX_SECONDS = 20  # a case takes milliseconds; other work on the machine may stop it for some seconds
MAX_GROWN_BYTES = 256 << 20
TEXTS = ("one", "two, three", "four", "five six")


def recorded(folder: Path) -> list[tuple[Path, int]]:
    ljspeech(folder, TEXTS)
    return [(folder / "wavs" / "LJ-0001.wav", HEAD_BYTES), (folder / "metadata.csv", 0)]


def transcribed(folder: Path) -> list[tuple[Path, int]]:
    librispeech(folder, TEXTS)
    return [(next(folder.rglob("*.trans.txt")), 0)]


def sentences(folder: Path) -> list[tuple[Path, int]]:
    (folder / "lines.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return [(folder / "lines.txt", 0)]


def pairs(folder: Path) -> list[tuple[Path, int]]:
    for language in ("de", "en"):
        (folder / f"train.{language}").write_text("\n".join(TEXTS), encoding="utf-8")
    return [(folder / "train.de", 0)]


# What writes a valid folder and names the files that are damaged (their first bytes alone, or all), and what reads it.
FORMATS: dict[str, tuple[Callable[[Path], list[tuple[Path, int]]], Reads]] = {
    "LJSpeech": (recorded, Reads("spectrograms", {"bins": 161})),
    "LibriSpeech": (transcribed, Reads("mel_spectrograms", {"bins": 80, "characters": 148})),
    "sentences": (sentences, Reads("sentences", {"vocabulary": 99}, longest=20)),
    "sentence pairs": (pairs, Reads("sentence_pairs", {"vocabulary": 99}, longest=20)),
}


def fuzz(name: str, count: int, seed: int) -> Outcome:
    """About `count` damaged folders of a format, in a process of their own."""
    make, reads = FORMATS[name]
    with TemporaryDirectory() as folder:
        files = make(Path(folder))

        def attempt(case: tuple[Path, bytes]) -> None:
            file, content = case
            whole = file.read_bytes()
            file.write_bytes(content)
            try:
                with TemporaryDirectory() as cache:
                    found = prepare(folder, reads, any_length=False, seed=0, cache=Path(cache), progress=lambda *_: None)
                    assert all(np.isfinite(part).all() for part in found.parts)
            finally:
                file.write_bytes(whole)

        for file, _ in files:
            attempt((file, file.read_bytes()))
        return outcome(attempt, damaged(files, count, seed), (WrongCall,))


def damaged(files: list[tuple[Path, int]], count: int, seed: int) -> Iterator[tuple[Path, bytes]]:
    rng = np.random.default_rng(seed)
    for file, head in files:
        whole = file.read_bytes()
        for content in mutations(whole[: head or None], rng, -(-count // len(files))):
            yield file, content + whole[head or len(whole) :]


def check_format(name: str, count: int, seed: int) -> None:
    found: Outcome = bounded(fuzz, name, count, seed)
    assert not found.wrong, found.wrong.most_common(5)
    assert found.cases >= count
    assert min(found.accepted, found.refused) > 0, found  # otherwise nothing was damaged, or nothing whole
    assert found.slowest_seconds < MAX_SECONDS, found
    assert found.grown_bytes < MAX_GROWN_BYTES, found


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_data_are_read_or_one_line(name: str) -> None:
    check_format(name, QUICK, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_ten_thousand_damaged_data_are_read_or_one_line(name: str) -> None:
    check_format(name, ALL // len(FORMATS), 1)
