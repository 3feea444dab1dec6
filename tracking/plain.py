"""Text from outside in printable form: other characters are shown as escapes."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

SHOWN_CHARACTERS = 80
# Control characters except white space, marks of direction, and halves of surrogate pairs.
CONTROLS = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Return a text with its lines and tabs; other controls are escaped, as `\x1b[31m`."""
    return "".join(letter if letter in "\n\t" else _visible(letter) for letter in text)


def line(text: str) -> str:
    """Return a text in a single line, line ends escaped too."""
    return "".join(map(_visible, text))


def short(text: str) -> str:
    """Return the beginning of a text in a single line, for a message that quotes it."""
    return line(text) if len(text) <= SHOWN_CHARACTERS else f"{line(text[:SHOWN_CHARACTERS])}…"


def path(path: str | Path) -> str:
    """Return the end of a path in a single line: a file's name says more than its first folder."""
    text = str(path)
    return line(text) if len(text) <= SHOWN_CHARACTERS else f"…{line(text[-SHOWN_CHARACTERS:])}"


def as_csv(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as lines of CSV."""
    import csv  # --help imports this module

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return visible(text.getvalue())


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    number = ord(character)
    if number < 0x20 and character not in "\n\r\t":
        return f"\\x{number:02x}"
    return json.dumps(character)[1:-1]  # so that JSON stays JSON
