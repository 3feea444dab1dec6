"""Conversion of captions to word ids and back.

The rules are those of the study's authors (lower case, one-letter words dropped, then the Keras
Tokenizer's defaults). Whether they give the published vocabulary sizes could not be checked without
the data sets. One difference: the authors took a caption's length before punctuation was split
("t-shirt" is one word); here it is taken after, and no word is cut off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PADDING = 0
START = "startseq"
END = "endseq"

_SEPARATORS = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


def words(text: str) -> list[str]:
    """Return the words of a caption, in order.

    Lower case; split at white space; words of one character dropped; then punctuation marks, but
    not the apostrophe, split words.
    """
    longer = " ".join(word for word in text.lower().split() if len(word) > 1)
    return [word for word in longer.translate(_SEPARATORS).split() if word not in (START, END)]


@dataclass(frozen=True)
class Vocabulary:
    """Words by falling frequency, then alphabetically; `entries[i]` has the id i + 1.

    The id 0 is padding. The marks `startseq` and `endseq` are entries like any other.
    """

    entries: tuple[str, ...]

    @classmethod
    def from_counts(cls, counts: Mapping[str, int]) -> Vocabulary:
        return cls(tuple(sorted(counts, key=lambda word: (-counts[word], word))))

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.entries, start=1)}

    @property
    def size(self) -> int:
        """Number of distinct ids, padding included."""
        return len(self.entries) + 1

    @property
    def start(self) -> int:
        return self.ids[START]

    @property
    def end(self) -> int:
        return self.ids[END]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the words up to the first end mark, without padding and marks."""
        decoded: list[str] = []
        for number in ids:
            if number == self.end:
                break
            if number not in (PADDING, self.start):
                decoded.append(self.entries[number - 1])
        return " ".join(decoded)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.entries, ensure_ascii=False), encoding="utf-8")
