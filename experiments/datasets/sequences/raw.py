"""The common form into which every reader of sentences and speech puts what it found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.datasets.labelled.checks import refused
from models.contract import Array
from tracking.errors import WrongCall

# Of a data set: the largest batch of the repeated study, twice from each of four buckets of lengths.
EXAMPLES = 512
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Found:
    """A data set for one kind of network.

    path: what is read, for messages. key: equal where the content is. read: how many examples there are, and `EXAMPLES` of them
    or all, chosen by the generator. An example has the same parts as all others, each an array along its own time; buckets of
    lengths are those of the first.
    """

    path: Path
    key: str
    read: Callable[[np.random.Generator], tuple[int, Iterator[tuple[Array, ...]]]]


def chosen(total: int, rng: np.random.Generator) -> list[int]:
    """Numbers of the examples that are used, ascending."""
    return sorted(rng.permutation(total)[:EXAMPLES].tolist())


def words(text: str) -> list[str]:
    """Lower case; every mark that is neither letter, digit nor white space is a word of its own."""
    return _WORD.findall(text.lower())


def numbered(counts: Mapping[str, int], first: int, size: int) -> dict[str, int]:
    """The most frequent entries, ties alphabetically, as the ids `first` to `size` - 1; the others have none."""
    entries = sorted(counts, key=lambda entry: (-counts[entry], entry))[: max(0, size - first)]
    return {entry: first + number for number, entry in enumerate(entries)}


def check_length(file: Path, line: int, length: int, longest: int | None) -> None:
    """Raises WrongCall for a sentence with more tokens than the network takes."""
    if longest is not None and length > longest:
        right = (
            f"the network takes at most {longest}: shorten it, or take lengths=fixed, which cuts"
        )
        raise refused(f"{file}, line {line}", f"has {length} tokens with its marks; {right}")


def looked_for(path: Path, wanted: str) -> WrongCall:
    """The error for a path at which nothing is that could be read."""
    return refused(f"data={path}", f"no such data there; looked for {wanted}")
