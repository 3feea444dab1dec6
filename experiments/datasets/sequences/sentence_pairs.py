"""Pairs of sentences for translation: two files line by line, or one with a tab between the two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path

from experiments.datasets.files import lines, refused
from experiments.datasets.labelled.raw import digest_of
from experiments.datasets.sequences import raw
from experiments.datasets.sequences.raw import Reader, SequenceSource
from tracking.errors import ErrorCode

LOOKS_FOR = (
    "a text file of sentence, tab, translation; or a folder that holds it as pairs.tsv, "
    "or two files, train.de and train.en"
)
END, UNKNOWN = 2, 3  # 0 is padding; GNMT puts 1 before a sentence that it speaks


def _find(path: Path, *, longest: int | None, vocabulary: int) -> SequenceSource:
    """Return examples of two parts, a sentence and its translation: ids of words, each with an end.

    Args:
        longest: Largest number of tokens of either with the end; None for any.
        vocabulary: Number of ids of both languages.
    """
    files = _files(path)
    if not files:
        raise raw.missing_data(path, LOOKS_FOR)

    def pairs() -> Iterator[tuple[list[str], ...]]:
        for number, texts in enumerate(_texts(files), start=1):
            pair = [raw.words(text) for text in texts]
            if all(pair):
                for file, words in zip((files[0], files[-1]), pair, strict=True):
                    raw.check_length(file, number, len(words) + 1, longest)
                yield tuple(pair)
            elif any(pair):
                raise refused(
                    f"{files[0]}, line {number}",
                    "a sentence has no translation; write a tab between the two, or the same "
                    "number of lines in two files",
                    ErrorCode.MISSING_VALUE,
                )

    return SequenceSource(
        path,
        digest_of(files),
        lambda rng: raw.word_examples(
            pairs, vocabulary, unknown=UNKNOWN, before=[], end=END, rng=rng
        ),
    )


def _files(path: Path) -> list[Path]:
    """Return one file, or those of two languages in the order of their names."""
    if not path.is_dir():
        return [path] if path.is_file() else []
    if (path / "pairs.tsv").is_file():
        return [path / "pairs.tsv"]
    both = sorted(file for file in path.glob("train.*") if file.is_file())
    return both if len(both) == 2 else []


def _texts(files: list[Path]) -> Iterator[tuple[str, str]]:
    if len(files) == 2:
        yield from zip_longest(*map(lines, files), fillvalue="")
    for line in lines(files[0]) if len(files) == 1 else ():
        sentence, _, rest = line.partition("\t")
        yield sentence, rest.partition("\t")[0]  # further fields are notes


READERS: Mapping[str, Reader] = {"sentence_pairs": _find}
