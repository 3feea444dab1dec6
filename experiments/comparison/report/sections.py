"""Content of a report: tables with captions, for a page, Markdown and a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

# Text of a cell without a value.
NONE = "—"
_NUMBER = re.compile(rf"({NONE}$|<? ?[+−±]?[\d,]+)(.*)", re.DOTALL)


@dataclass(frozen=True)
class Cell:
    """Cell of a table.

    Attributes:
        style: `better`, `worse`, `differs`, `alike`, `open`, `none` (coloured labels) or `alarm`.
        note: a few words after the text; a terminal does not show them.
        link: target of the text on a page.
        code: reason code of the note, which a `Note` of the section explains.
    """

    text: str
    style: str = ""
    note: str = ""
    link: str = ""
    code: str = ""

    @cached_property
    def number(self) -> tuple[str, str] | None:
        """A number, cut where those of a column are aligned (`18`, `.6 ms`); None of a word."""
        match = _NUMBER.fullmatch(self.text)
        return (match[1], match[2]) if match else None


@dataclass(frozen=True)
class Column:
    """Column of a table.

    Attributes:
        numeric: aligned to the right.
        decimal: on a page, aligned at the decimal points; numeric columns are.
    """

    name: str
    numeric: bool = False
    in_terminal: bool = True
    decimal: bool = False


@dataclass(frozen=True)
class Note:
    """Note on a table.

    Attributes:
        term: a reason code, or a word of the table.
        concerns: rows that have the reason; empty for all.
    """

    term: str
    text: str
    concerns: str = ""


Header = Sequence[str | Column]
Line = str | Sequence[str | Cell]


@dataclass(frozen=True)
class Section:
    """Table with title and caption; a row that is a text is a heading over those below.

    Columns without any value are not shown.

    Attributes:
        folded: on a page opened by the reader.
        hint: what stands beside the title of a folded section.
        on_page_only: left out of Markdown and paper.
        notes: reasons in full, and what the table's words mean: on a page opened by the reader.
    """

    title: str
    caption: str
    header: Header
    rows: Sequence[Line]
    folded: bool = False
    hint: str = ""
    on_page_only: bool = False
    notes: Sequence[Note] = ()

    @cached_property
    def _cells(self) -> list[str | list[Cell]]:
        return [
            row
            if isinstance(row, str)
            else [Cell(cell) if isinstance(cell, str) else cell for cell in row]
            for row in self.rows
        ]

    @cached_property
    def _shown(self) -> list[int]:
        """Places of the columns with a value in any row; the first one names the rows."""
        lines = [line for line in self._cells if not isinstance(line, str)]
        return [
            at
            for at in range(len(self.header))
            if at == 0 or not lines or any(line[at].text not in ("", NONE) for line in lines)
        ]

    @cached_property
    def columns(self) -> list[Column]:
        header = [self.header[at] for at in self._shown]
        return [Column(name) if isinstance(name, str) else name for name in header]

    @cached_property
    def lines(self) -> list[str | list[Cell]]:
        """Rows with their texts as cells."""
        return [
            line if isinstance(line, str) else [line[at] for at in self._shown]
            for line in self._cells
        ]

    @cached_property
    def widths(self) -> list[int]:
        """Most characters after the whole number in each column."""
        lines = [line for line in self.lines if not isinstance(line, str)]
        numbers = [[line[at].number for line in lines] for at in range(len(self.columns))]
        return [
            max((len(number[1]) for number in column if number), default=0) for column in numbers
        ]
