"""A table of a study's own in the report, beside those that every comparison has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """title, caption, and a table: header and rows of text."""

    title: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
