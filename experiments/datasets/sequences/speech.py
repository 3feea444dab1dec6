"""Folders of recorded speech with transcripts, in the layouts of LJSpeech and of LibriSpeech."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.datasets.files import lines
from experiments.datasets.labelled.checks import refused
from experiments.datasets.sequences.raw import looked_for

LOOKS_FOR = "a folder with metadata.csv and wavs/ (LJSpeech), or with *.trans.txt beside their WAV files (LibriSpeech)"


@dataclass(frozen=True)
class Utterance:
    """file: the WAV file. text: what is said in it. where: the transcript's file and line, for messages."""

    file: Path
    text: str
    where: str


def utterances(folder: Path) -> list[Utterance]:
    """All, in the order of the files. Raises WrongCall for a row that is none, and for a recording that is missing."""
    if not folder.is_dir():
        raise looked_for(folder, LOOKS_FOR)
    metadata, transcripts = folder / "metadata.csv", sorted(folder.rglob("*.trans.txt"))
    if metadata.is_file() and transcripts:
        raise refused(
            folder, f"has metadata.csv and {transcripts[0].name}; keep one data set in a folder"
        )
    if not metadata.is_file() and not transcripts:
        raise looked_for(folder, LOOKS_FOR)
    found = (
        list(_of_metadata(metadata))
        if not transcripts
        else [one for path in transcripts for one in _of_transcript(path)]
    )
    if not found:
        raise refused(
            metadata if not transcripts else transcripts[0],
            "is empty; a row has a name and what is said",
        )
    for one in found:
        if not one.file.is_file():
            flac = one.file.with_suffix(".flac").is_file()
            right = (
                "there is a .flac file: convert it to WAV"
                if flac
                else "fetch the recordings, or remove the row"
            )
            raise refused(one.where, f"the recording {one.file} is missing; {right}")
    return found


def key(found: list[Utterance], folder: Path) -> str:
    """Of the transcripts, and of names, sizes and times of the recordings: to read all of these would take minutes."""
    total = hashlib.sha256()
    for one in found:
        about = one.file.stat()
        name = one.file.relative_to(folder).as_posix()
        total.update(
            f"{name}\0{about.st_size} {about.st_mtime_ns}\0{one.text}\n".encode(
                errors="surrogateescape"
            )
        )
    return total.hexdigest()


def _of_metadata(path: Path) -> Iterator[Utterance]:
    """Rows of LJSpeech, `name|text|text with numbers in words`; the last that is there is what is said."""
    for number, line in enumerate(lines(path), start=1):
        name, *texts = line.split("|")
        if line.strip():
            said = [text for text in texts if text.strip()] if len(texts) in (1, 2) else []
            yield _utterance(
                path, number, path.parent / "wavs", name, said[-1] if said else "", "name|text"
            )


def _of_transcript(path: Path) -> Iterator[Utterance]:
    """Rows of LibriSpeech, `name TEXT`."""
    for number, line in enumerate(lines(path), start=1):
        name, _, text = line.partition(" ")
        if line.strip():
            yield _utterance(path, number, path.parent, name, text, "name TEXT")


def _utterance(path: Path, number: int, folder: Path, name: str, text: str, row: str) -> Utterance:
    where = f"{path}, line {number}"
    if not name or not text.strip():
        raise refused(where, f"is no row such as {row}")
    if "/" in name:
        raise refused(
            where,
            f"the name {name[:40]!r} has a /; a recording lies beside its transcript or in wavs/",
        )
    return Utterance(folder / f"{name}.wav", text.strip(), where)
