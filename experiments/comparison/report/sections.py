"""What a report consists of: tables with what is said of them, the same for a page, for Markdown and for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Cell:
    """A cell of a table. style: how it is coloured: `better`, `worse`, `differs`, `alike`, `open`, `none` or `alarm`.

    aside: a page shows it only where the reader points at the cell that it stands under. link: where the text leads on a page.
    """

    text: str
    style: str = ""
    aside: bool = False
    link: str = ""


@dataclass(frozen=True)
class Column:
    """numeric: aligned to the right. pill: its style is a coloured label. once: a value is not repeated in the line below.

    under: on a page it stands small under the column before. terminal: shown in a terminal, at least so many letters wide.
    """

    name: str
    numeric: bool = False
    pill: bool = False
    once: bool = False
    under: bool = False
    terminal: int = 0


Header = Sequence[str | Column]
Line = str | Sequence[str | Cell]


@dataclass(frozen=True)
class Section:
    """A title, what must be known of the table, and the table itself. A row that is one text is a heading over those below.

    warning: stands out. folded: on a page opened by the reader, elsewhere left out.
    """

    title: str
    caption: str
    header: Header
    rows: Sequence[Line]
    warning: str = ""
    level: int = 2
    folded: bool = False

    @cached_property
    def columns(self) -> list[Column]:
        return [Column(one) if isinstance(one, str) else one for one in self.header]

    def lines(self, *, once: bool = True) -> Iterator[str | list[Cell]]:
        """Headings and rows of cells. once: leave out what a line repeats from the one above."""
        before: list[Cell] = []
        for row in self.rows:
            if isinstance(row, str):
                before = []
                yield row
                continue
            cells = [Cell(one) if isinstance(one, str) else one for one in row]
            blank = [
                once and column.once and before[at : at + 1] == [cells[at]]
                for at, column in enumerate(self.columns)
            ]
            before = cells
            yield [Cell("") if skip else cell for cell, skip in zip(cells, blank, strict=True)]

    @property
    def page_lines(self) -> Iterator[str | list[tuple[Column, Cell, list[Cell]]]]:
        """As `lines`, with the cells that stand under another beside it."""
        for line in self.lines():
            if isinstance(line, str):
                yield line
                continue
            found: list[tuple[Column, Cell, list[Cell]]] = []
            for column, cell in zip(self.columns, line, strict=True):
                if column.under:
                    found[-1][2].append(cell)
                else:
                    found.append((column, cell, []))
            yield found

    @cached_property
    def page_header(self) -> list[tuple[Column, str]]:
        """Columns, and what is written over them: the names of those that stand under them too, but for asides."""
        found: list[tuple[Column, str]] = []
        for column in self.columns:
            if not column.under:
                found.append((column, column.name))
            elif column.name:
                found[-1] = (found[-1][0], f"{found[-1][1]}, {column.name}")
        return found
