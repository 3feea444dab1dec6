"""Pairs of sentences, as a translation is trained on them: two files line by line, or one with a tab between the two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
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

LOOKS_FOR = "a text file of sentence, tab, translation; or a folder that holds it as pairs.tsv, or two files, train.de and train.en"
END, UNKNOWN = 2, 3  # 0 is padding, 1 begins a sentence that is said: GNMT puts it there


def find(path: Path, *, longest: int | None, vocabulary: int) -> Found:
    """Examples of two parts: ids of a sentence's words and of its translation's, int32, from one vocabulary, each with an end.

    longest: tokens of either with the end; None: of any length.
    """
    files = _files(path)
    if not files:
        raise looked_for(path, LOOKS_FOR)
    return Found(path, digest_of(files), lambda rng: _read(files, longest, vocabulary, rng))


def _files(path: Path) -> list[Path]:
    """One file or two; those of two languages in the order of their names."""
    if not path.is_dir():
        return [path] if path.is_file() else []
    if (path / "pairs.tsv").is_file():
        return [path / "pairs.tsv"]
    both = sorted(file for file in path.glob("train.*") if file.is_file())
    return both if len(both) == 2 else []


def _read(
    files: list[Path], longest: int | None, vocabulary: int, rng: np.random.Generator
) -> tuple[int, Iterator[tuple[Array, ...]]]:
    counts, total = Counter[str](), 0
    for number, pair in _pairs(files):
        for file, found in zip((files[0], files[-1]), pair, strict=True):
            check_length(file, number, len(found) + 1, longest)
            counts.update(found)
        total += 1
    ids, wanted = numbered(counts, UNKNOWN + 1, vocabulary), set(chosen(total, rng))
    used = (pair for row, (_, pair) in enumerate(_pairs(files)) if row in wanted)
    return total, (
        tuple(
            np.array([*(ids.get(word, UNKNOWN) for word in found), END], np.int32) for found in pair
        )
        for pair in used
    )


def _pairs(files: list[Path]) -> Iterator[tuple[int, tuple[list[str], list[str]]]]:
    """Numbers of lines, and the words of both sentences; lines with no word on either side are passed over."""
    rows = _tabbed(files[0]) if len(files) == 1 else _side_by_side(*files)
    for number, (one, other) in enumerate(rows, start=1):
        pair = words(one), words(other)
        if all(pair):
            yield number, pair
        elif any(pair):
            raise refused(
                f"{files[0]}, line {number}",
                "a sentence stands without a translation; remove the line, in both files",
            )


def _tabbed(file: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines(file), start=1):
        one, tab, rest = line.partition("\t")
        if line.strip() and not tab:
            raise refused(
                f"{file}, line {number}",
                "has no tab; a line is a sentence, a tab and its translation",
            )
        yield one, rest.partition("\t")[0]  # what follows is a note: whose sentences these are


def _side_by_side(first: Path, second: Path) -> Iterator[tuple[str, str]]:
    for number, (one, other) in enumerate(zip_longest(lines(first), lines(second)), start=1):
        if one is None or other is None:
            short, long = (first, second) if one is None else (second, first)
            raise refused(
                short,
                f"ends before line {number}, which {long.name} has; line by line one is the other's translation",
            )
        yield one, other
