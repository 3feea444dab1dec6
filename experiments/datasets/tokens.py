"""From caption to word ids and back.

The rules are those of the study's authors (lower case, one-letter words dropped, then the Keras Tokenizer's defaults), so the
published vocabulary sizes should come out; without the data sets at hand that could not be checked. One difference is known: the
authors took a caption's length before punctuation was split ("t-shirt" is one word), here it is after, so nothing is cut off.
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
    """The words of a caption, in order.

    Lower case; split at white space; words of one character dropped; then punctuation marks split words (the apostrophe is none).
    """
    kept = " ".join(word for word in text.lower().split() if len(word) > 1)
    return [word for word in kept.translate(_SEPARATORS).split() if word not in (START, END)]


@dataclass(frozen=True)
class Vocabulary:
    """Words by falling frequency, then alphabetically; `entries[i]` has the id i + 1, the id 0 is padding.

    The marks `startseq` and `endseq` are entries like any other.
    """

    entries: tuple[str, ...]

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Vocabulary:
        """From how often each entry occurs, the two marks among them."""
        return cls(tuple(sorted(counts, key=lambda word: (-counts[word], word))))

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.entries, start=1)}

    @property
    def size(self) -> int:
        """V: the number of distinct ids, padding included."""
        return len(self.entries) + 1

    @property
    def start(self) -> int:
        return self.ids[START]

    @property
    def end(self) -> int:
        return self.ids[END]

    def decode(self, ids: Iterable[int]) -> str:
        """The words up to the first end mark, without padding and marks."""
        found: list[str] = []
        for number in ids:
            if number == self.end:
                break
            if number not in (PADDING, self.start):
                found.append(self.entries[number - 1])
        return " ".join(found)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.entries, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        return cls(tuple(json.loads(path.read_text(encoding="utf-8"))))
