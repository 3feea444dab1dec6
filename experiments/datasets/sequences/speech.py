"""Folders of recorded speech with transcripts, in the layouts of LJSpeech and of LibriSpeech.

`spectrograms` and letters are for a recogniser with CTC, `mel_spectrograms` and characters for a
network that speaks.
"""

from __future__ import annotations

import hashlib
import io
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.files import check_size, lines, reading, refused
from experiments.datasets.sequences import features
from experiments.datasets.sequences.raw import (
    Examples,
    Reader,
    SequenceSource,
    assign_ids,
    draw_rows,
    missing_data,
)
from models.contract import Array
from tracking.errors import ErrorCode

LOOKS_FOR = (
    "a folder with metadata.csv and wavs/ (LJSpeech), "
    "or with *.trans.txt next to their WAV files (LibriSpeech)"
)
MIN_RATE, MAX_RATE = 16_000, 48_000
MIN_SECONDS, MAX_SECONDS = 0.1, 60
# No utterance needs more; a file of sparse zeros may promise it.
_MAX_BYTES = 64 << 20

SYMBOLS = " 'abcdefghijklmnopqrstuvwxyz"  # from 1 on; 0 is the blank
FRAMES_A_STEP = 2  # the network's convolutions leave every second frame
UNKNOWN = 1  # id of a character without an id; 0 is padding


@dataclass(frozen=True)
class Utterance:
    """WAV file, its text, and the transcript's file and line for messages."""

    file: Path
    text: str
    where: str

    def samples(self) -> tuple[int, NDArray[np.float64]]:
        """Return the samples per second and the samples, -1…1, of a recording with one channel.

        Raises:
            UsageError: The file is no such recording.
        """
        with reading(self.file, "WAV file of 16, 24 or 32 bits PCM"):
            check_size(self.file, _MAX_BYTES)
            rate, samples = _parse(self.file.read_bytes())
            channels = 1 if samples.ndim == 1 else samples.shape[1]
            seconds = len(samples) / rate
            is_right = channels == 1 and samples.dtype in (np.int16, np.int32)
            is_rate = MIN_RATE <= rate <= MAX_RATE
            if not (is_right and is_rate and MIN_SECONDS <= seconds <= MAX_SECONDS):
                raise ValueError(
                    f"{channels} channels of {samples.dtype}, {rate:,} samples a second, "
                    f"{seconds:.3g} s; it needs one channel of 16 to 32 bits, {MIN_RATE:,} to "
                    f"{MAX_RATE:,} samples a second, {MIN_SECONDS} to {MAX_SECONDS} s"
                )
        return rate, samples / 2.0 ** (8 * samples.dtype.itemsize - 1)


def _parse(content: bytes) -> tuple[int, NDArray[Any]]:
    """Read from memory, so that a header that promises gigabytes takes none."""
    from scipy.io import wavfile

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)  # parts that are no sound
        warnings.filterwarnings("error", "Reached EOF|Incomplete chunk", wavfile.WavFileWarning)
        try:
            rate, samples = wavfile.read(io.BytesIO(content))
        except wavfile.WavFileWarning as error:
            raise ValueError(f"it is cut off: {error}") from None
        except UnboundLocalError:
            raise ValueError("it has no sound in it") from None
    return int(rate), np.asarray(samples)


def utterances(folder: Path) -> list[Utterance]:
    metadata = folder / "metadata.csv"
    transcripts = sorted(folder.rglob("*.trans.txt")) if folder.is_dir() else []
    if metadata.is_file() and transcripts:
        raise refused(
            folder,
            f"has metadata.csv and {transcripts[0].name}; keep one data set in a folder",
            ErrorCode.CONFLICT,
        )
    if not metadata.is_file() and not transcripts:
        raise missing_data(folder, LOOKS_FOR)
    rows = [row for path in transcripts for row in _librispeech(path)]
    if not transcripts:
        rows = list(_ljspeech(metadata))
    for row in rows:
        if not row.file.is_file():
            raise refused(
                row.where,
                f"the recording {row.file} is missing; convert it to WAV, or remove the row",
                ErrorCode.NOT_FOUND,
            )
    return rows


def key(rows: list[Utterance], folder: Path) -> str:
    """Digest transcripts, and names, sizes and times of recordings, which are many to read."""
    total = hashlib.sha256()
    for row in rows:
        stat = row.file.stat()
        name = row.file.relative_to(folder).as_posix()
        text = f"{name}\0{stat.st_size} {stat.st_mtime_ns}\0{row.text}\n"
        total.update(text.encode(errors="surrogateescape"))
    return total.hexdigest()


def _ljspeech(path: Path) -> Iterator[Utterance]:
    """Yield rows `name|text|text with numbers in words`; the last text is the spoken one."""
    for number, line in enumerate(lines(path), start=1):
        if line.strip():
            name, *texts = line.split("|")
            texts = [text for text in texts if text.strip()] if len(texts) <= 2 else []
            where = f"{path}, line {number}"
            yield _utterance(path.parent / "wavs", name, texts[-1] if texts else "", where)


def _librispeech(path: Path) -> Iterator[Utterance]:
    for number, line in enumerate(lines(path), start=1):
        if line.strip():
            name, _, text = line.partition(" ")
            yield _utterance(path.parent, name, text, f"{path}, line {number}")


def _utterance(folder: Path, name: str, text: str, where: str) -> Utterance:
    if not name or "/" in name or not text.strip():
        raise refused(
            where,
            "is no row: write name|text (LJSpeech) or name TEXT (LibriSpeech); a name has no /",
        )
    return Utterance(folder / f"{name}.wav", text.strip(), where)


def _spectrograms(path: Path, *, longest: int | None, bins: int) -> SequenceSource:  # noqa: ARG001
    """Return examples of two parts: frames (F, bins), float32, and symbols, int32."""
    rows = utterances(path)
    return SequenceSource(
        path,
        key(rows, path),
        lambda rng: (
            len(rows),
            (_symbol_example(rows[row], bins) for row in draw_rows(len(rows), rng)),
        ),
    )


def _symbol_example(utterance: Utterance, bins: int) -> tuple[Array, Array]:
    rate, samples = utterance.samples()
    frames = features.log_spectrogram(samples, rate, bins)
    letters = unicodedata.normalize("NFKD", utterance.text.lower())
    text = " ".join("".join(letter for letter in letters if letter in SYMBOLS).split())
    symbols = np.array([1 + SYMBOLS.index(letter) for letter in text], np.int32)
    # CTC needs a frame for each symbol, and a blank between two equal ones.
    needed = len(symbols) + int((symbols[1:] == symbols[:-1]).sum())
    steps = -(-len(frames) // FRAMES_A_STEP)
    if not 0 < needed <= steps:
        raise refused(
            utterance.where,
            f"{len(symbols)} letters a to z need {needed} frames, and {utterance.file.name} has "
            f"{steps}: is this its text?",
            ErrorCode.CONFLICT,
        )
    return frames, symbols


def _mel_spectrograms(
    path: Path,
    *,
    longest: int | None,  # noqa: ARG001
    bins: int,
    characters: int,
) -> SequenceSource:
    """Return examples of two parts: frames (F, bins), float32, and ids of characters, int32."""
    rows = utterances(path)

    def read(rng: np.random.Generator) -> Examples:
        counts = Counter(letter for row in rows for letter in row.text.lower())
        ids = assign_ids(counts, UNKNOWN + 1, characters)

        def example(row: Utterance) -> tuple[Array, Array]:
            rate, samples = row.samples()
            letters = np.array([ids.get(letter, UNKNOWN) for letter in row.text.lower()], np.int32)
            return features.log_mel(samples, rate, bins), letters

        return len(rows), (example(rows[row]) for row in draw_rows(len(rows), rng))

    return SequenceSource(path, key(rows, path), read)


READERS: Mapping[str, Reader] = {
    "spectrograms": _spectrograms,
    "mel_spectrograms": _mel_spectrograms,
}
