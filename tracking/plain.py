"""Text from outside as it may be printed: whatever does not print as itself is shown as its escape."""

from __future__ import annotations

import json
import re

SHOWN_CHARACTERS = 80
# Control characters but for white space, what turns the direction of writing, and halves of characters: in no name on purpose.
CONTROLS = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """The text, its lines and tabs as they are; an escape sequence reads `\\x1b[31m`, a mark of direction `\\u202e`."""
    return (
        text
        if text.isprintable()
        else "".join(one if one in "\n\t" else _visible(one) for one in text)
    )


def line(text: str) -> str:
    """The text in a single line, its ends of lines shown too."""
    return text if text.isprintable() else "".join(map(_visible, text))


def short(text: str) -> str:
    """The beginning of a text in a single line, for a message that quotes it."""
    return line(text) if len(text) <= SHOWN_CHARACTERS else f"{line(text[:SHOWN_CHARACTERS])}…"


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    if character in "\n\r\t":
        return json.dumps(character)[1:-1]
    number = ord(character)
    if number < 0x20:
        return f"\\x{number:02x}"
    # As JSON writes it, so that JSON that was made visible still is JSON.
    return f"\\u{number:04x}" if number <= 0xFFFF else json.dumps(character)[1:-1]
