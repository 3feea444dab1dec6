"""Sentences, one a line, for a classifier of sentences: tokens between two marks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from experiments.datasets.files import lines, refused
from experiments.datasets.labelled.raw import digest_of
from experiments.datasets.sequences import raw
from experiments.datasets.sequences.raw import Reader, SequenceSource
from tracking.errors import ErrorCode

LOOKS_FOR = "a text file of one sentence a line, or a folder that holds it as lines.txt"
UNKNOWN, START, END = 1, 2, 3  # BERT's [UNK], [CLS] and [SEP]; 0 is padding


def _find(path: Path, *, longest: int | None, vocabulary: int) -> SequenceSource:
    """Return examples of one part: ids of words, int32.

    Args:
        longest: Largest number of tokens with both marks; None for any.
        vocabulary: Number of ids.
    """
    file = path / "lines.txt" if path.is_dir() else path
    if not file.is_file():
        raise raw.missing_data(path, LOOKS_FOR)

    def sentences() -> Iterator[tuple[list[str], ...]]:
        for number, line in enumerate(lines(file), start=1):
            if "\t" in line:
                raise refused(
                    f"{file}, line {number}",
                    "has a tab; a line is one sentence",
                    ErrorCode.INVALID_VALUE,
                )
            if words := raw.words(line):
                raw.check_length(file, number, len(words) + 2, longest)
                yield (words,)

    return SequenceSource(
        file,
        digest_of([file]),
        lambda rng: raw.word_examples(
            sentences, vocabulary, unknown=UNKNOWN, before=[START], end=END, rng=rng
        ),
    )


READERS: Mapping[str, Reader] = {"sentences": _find}
