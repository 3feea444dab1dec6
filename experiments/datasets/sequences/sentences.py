"""Sentences, one a line, as a classifier of sentences takes them: tokens between two marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.datasets.files import lines
from experiments.datasets.labelled.checks import refused
from experiments.datasets.labelled.raw import digest_of
from experiments.datasets.sequences.raw import (
    Found,
    check_length,
    chosen,
    looked_for,
    numbered,
    words,
)
from models.contract import Array

LOOKS_FOR = "a text file of one sentence a line, or a folder that holds it as lines.txt"
UNKNOWN, START, END = 1, 2, 3  # BERT's [UNK], [CLS] and [SEP]; 0 is padding


def find(path: Path, *, longest: int | None, vocabulary: int) -> Found:
    """Examples of one part: ids of words, int32. longest: tokens with both marks; None: of any length."""
    file = path / "lines.txt" if path.is_dir() else path
    if not file.is_file():
        raise looked_for(path, LOOKS_FOR)
    return Found(file, digest_of([file]), lambda rng: _read(file, longest, vocabulary, rng))


def _read(
    file: Path, longest: int | None, vocabulary: int, rng: np.random.Generator
) -> tuple[int, Iterator[tuple[Array, ...]]]:
    counts, total = Counter[str](), 0
    for number, found in _sentences(file):
        check_length(file, number, len(found) + 2, longest)
        counts.update(found)
        total += 1
    ids, wanted = numbered(counts, END + 1, vocabulary), set(chosen(total, rng))
    used = (found for row, (_, found) in enumerate(_sentences(file)) if row in wanted)
    return total, (
        (np.array([START, *(ids.get(word, UNKNOWN) for word in found), END], np.int32),)
        for found in used
    )


def _sentences(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Numbers of lines, and the words in them; lines without any are passed over."""
    for number, line in enumerate(lines(file), start=1):
        if "\t" in line:
            raise refused(f"{file}, line {number}", "has a tab; a line is one sentence")
        if found := words(line):
            yield number, found
