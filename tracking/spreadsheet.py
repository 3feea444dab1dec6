"""The only module that writes CSV: a spreadsheet program opens it as text and numbers, never as formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from tracking import plain

# What makes a cell a formula in one program or another (OWASP, CSV injection), also in full width.
BEGINNINGS = tuple("=+-@\t\r\n＝＋－＠")


def as_csv(rows: Iterable[Sequence[object]]) -> str:
    """Rows as lines. A text that begins like a formula gets an apostrophe before it; numbers stay what they are."""
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
