"""CSV that a spreadsheet program opens as text and numbers, never as formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from tracking import plain

# Beginnings of formulas in any program (OWASP, CSV injection), also in full width.
BEGINNINGS = tuple("=+-@\t\r\n＝＋－＠")


def as_csv(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as lines. A text that begins like a formula gets an apostrophe before it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_cell, row) for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    formula = value.startswith(BEGINNINGS) and not _is_number(value)
    return "'" * formula + plain.visible(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
