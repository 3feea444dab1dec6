"""Common form of sentences and speech, which every reader returns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.datasets.files import refused
from models.contract import Array
from tracking.errors import ErrorCode, UsageError

Examples = tuple[int, Iterator[tuple[Array, ...]]]
# Reads a file or folder. Arguments: its path, the largest number of tokens or None, sizes by name.
Reader = Callable[..., "SequenceSource"]
# The largest batch of the repeated study, twice from each of four buckets of lengths.
EXAMPLES = 512
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class SequenceSource:
    """A data set for one kind of network.

    path: what is read, for messages.
    key: equal for equal content.
    read: returns the number of examples, and `EXAMPLES` of them or all, chosen by the generator.
        Every example has the same parts, each an array along its time; buckets of lengths are those
        of the first part.
    """

    path: Path
    key: str
    read: Callable[[np.random.Generator], Examples]


def draw_rows(total: int, rng: np.random.Generator) -> list[int]:
    return sorted(rng.permutation(total)[:EXAMPLES].tolist())


def words(text: str) -> list[str]:
    """Return the words in lower case; every punctuation mark is a word."""
    return _WORD.findall(text.lower())


def assign_ids(counts: Mapping[str, int], first: int, size: int) -> dict[str, int]:
    """Give the most frequent entries, ties alphabetically, the ids `first` to `size` - 1."""
    entries = sorted(counts, key=lambda entry: (-counts[entry], entry))[: max(0, size - first)]
    return {entry: first + number for number, entry in enumerate(entries)}


def word_examples(
    rows: Callable[[], Iterator[tuple[list[str], ...]]],
    vocabulary: int,
    *,
    unknown: int,
    before: Sequence[int],
    end: int,
    rng: np.random.Generator,
) -> Examples:
    """Return examples of the ids of words, int32, from one vocabulary.

    Args:
        rows: Reads the words of each part of every example; called twice.
        vocabulary: Number of ids.
        unknown: Id of the words without an id.
        before, end: Ids of the marks before and behind the words of a part.
    """
    counts, total = Counter[str](), 0
    for parts in rows():
        for part in parts:
            counts.update(part)
        total += 1
    ids = assign_ids(counts, max(unknown, end) + 1, vocabulary)
    used = set(draw_rows(total, rng))
    return total, (
        tuple(
            np.array([*before, *(ids.get(word, unknown) for word in part), end], np.int32)
            for part in parts
        )
        for row, parts in enumerate(rows())
        if row in used
    )


def check_length(file: Path, line: int, length: int, longest: int | None) -> None:
    if longest is not None and length > longest:
        raise refused(
            f"{file}, line {line}",
            f"has {length} tokens with its marks; the network takes at most {longest}"
            f": "
            "shorten it, or take lengths=fixed, which cuts",
            ErrorCode.TOO_LARGE,
        )


def missing_data(path: Path, expected: str) -> UsageError:
    return refused(
        f"data={path}", f"no such data there; looked for {expected}", ErrorCode.NOT_FOUND
    )
