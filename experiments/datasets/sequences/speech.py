"""Folders of recorded speech with transcripts, in the layouts of LJSpeech and of LibriSpeech."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.files import lines, reading, refused
from experiments.datasets.sequences.raw import looked_for

LOOKS_FOR = (
    "a folder with metadata.csv and wavs/ (LJSpeech), "
    "or with *.trans.txt next to their WAV files (LibriSpeech)"
)
MIN_RATE, MAX_RATE = 16_000, 48_000
MIN_SECONDS, MAX_SECONDS = 0.1, 60
# No utterance needs more; a file of sparse zeros may promise it.
_MAX_BYTES = 64 << 20


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
            if (size := self.file.stat().st_size) > _MAX_BYTES:
                raise ValueError(f"it has {size:,} bytes; at most {_MAX_BYTES:,} are one utterance")
            rate, samples = _parse(self.file.read_bytes())
            if samples.ndim != 1:
                raise ValueError(f"it has {samples.shape[1]} channels; make it mono")
            bits = 8 * samples.dtype.itemsize
            if samples.dtype.kind != "i" or bits not in (16, 32):
                raise ValueError(f"it has samples of {samples.dtype}; make it 16 bits PCM")
            if not MIN_RATE <= rate <= MAX_RATE:
                raise ValueError(
                    f"it has {rate:,} samples a second; between {MIN_RATE:,} and "
                    f"{MAX_RATE:,} are read"
                )
            seconds = len(samples) / rate
            if not MIN_SECONDS <= seconds <= MAX_SECONDS:
                raise ValueError(
                    f"it lasts {seconds:.3g} s; an utterance lasts between {MIN_SECONDS} and "
                    f"{MAX_SECONDS} s"
                )
        return rate, samples / 2.0 ** (bits - 1)


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
            folder, f"has metadata.csv and {transcripts[0].name}; keep one data set in a folder"
        )
    if not metadata.is_file() and not transcripts:
        raise looked_for(folder, LOOKS_FOR)
    rows = [row for path in transcripts for row in _librispeech(path)]
    if not transcripts:
        rows = list(_ljspeech(metadata))
    if not rows:
        raise refused(
            transcripts[0] if transcripts else metadata, "is empty; a row has a name and its text"
        )
    for row in rows:
        if not row.file.is_file():
            right = "fetch the recordings, or remove the row"
            if row.file.with_suffix(".flac").is_file():
                right = "there is a .flac file: convert it to WAV"
            raise refused(row.where, f"the recording {row.file} is missing; {right}")
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
    if not name or not text.strip():
        raise refused(where, "is no row; write name|text (LJSpeech) or name TEXT (LibriSpeech)")
    if "/" in name:
        raise refused(
            where,
            f"the name {name[:40]!r} has a /; a recording is next to its transcript or in wavs/",
        )
    return Utterance(folder / f"{name}.wav", text.strip(), where)
