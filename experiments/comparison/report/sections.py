"""Content of a report: tables with captions, for a page, Markdown and a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Cell:
    """Cell of a table.

    Attributes:
        style: `better`, `worse`, `differs`, `alike`, `open`, `none` (coloured labels) or `alarm`.
        note: second line; a terminal does not show it.
        link: target of the text on a page.
    """

    text: str
    style: str = ""
    note: str = ""
    link: str = ""


@dataclass(frozen=True)
class Column:
    """Column of a table; `numeric` is aligned to the right."""

    name: str
    numeric: bool = False
    in_terminal: bool = True


Header = Sequence[str | Column]
Line = str | Sequence[str | Cell]


@dataclass(frozen=True)
class Section:
    """Table with title and caption; a row that is a text is a heading over those below.

    Attributes:
        folded: on a page opened by the reader, in Markdown left out.
    """

    title: str
    caption: str
    header: Header
    rows: Sequence[Line]
    folded: bool = False

    @cached_property
    def columns(self) -> list[Column]:
        return [Column(name) if isinstance(name, str) else name for name in self.header]

    @cached_property
    def lines(self) -> list[str | list[Cell]]:
        """Rows with their texts as cells."""
        return [
            row
            if isinstance(row, str)
            else [Cell(cell) if isinstance(cell, str) else cell for cell in row]
            for row in self.rows
        ]
