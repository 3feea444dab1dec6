"""Content of a report: tables with captions, for a page, Markdown and a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Cell:
    """Cell of a table.

    Attributes:
        style: `better`, `worse`, `differs`, `alike`, `open`, `none` or `alarm`.
        aside: shown by a page only when the reader points at the cell above it.
        link: target of the text on a page.
    """

    text: str
    style: str = ""
    aside: bool = False
    link: str = ""


@dataclass(frozen=True)
class Column:
    """Column of a table.

    Attributes:
        numeric: aligned to the right.
        pill: its style is a coloured label.
        once: a value is not repeated in the line below.
        under: on a page it stands under the column before.
        terminal: minimum width in a terminal; 0 is not shown.
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
    """Table with title and caption; a row that is a text is a heading over those below.

    Attributes:
        warning: printed in bold.
        folded: on a page opened by the reader, elsewhere left out.
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
        return [Column(cell) if isinstance(cell, str) else cell for cell in self.header]

    def lines(self, *, once: bool = True) -> Iterator[str | list[Cell]]:
        """Yield headings and rows of cells; `once` leaves out repeated values."""
        before: list[Cell] = []
        for row in self.rows:
            if isinstance(row, str):
                before = []
                yield row
                continue
            cells = [Cell(cell) if isinstance(cell, str) else cell for cell in row]
            blank = [
                once and column.once and before[at : at + 1] == [cells[at]]
                for at, column in enumerate(self.columns)
            ]
            before = cells
            yield [Cell("") if skip else cell for cell, skip in zip(cells, blank, strict=True)]

    @property
    def page_lines(self) -> Iterator[str | list[tuple[Column, Cell, list[Cell]]]]:
        """Lines with the cells that stand under another in its list."""
        for line in self.lines():
            if isinstance(line, str):
                yield line
                continue
            page_cells: list[tuple[Column, Cell, list[Cell]]] = []
            for column, cell in zip(self.columns, line, strict=True):
                if column.under:
                    page_cells[-1][2].append(cell)
                else:
                    page_cells.append((column, cell, []))
            yield page_cells

    @cached_property
    def page_header(self) -> list[tuple[Column, str]]:
        """Columns with their titles, which name the columns under them."""
        page_columns: list[tuple[Column, str]] = []
        for column in self.columns:
            if not column.under:
                page_columns.append((column, column.name))
            elif column.name:
                page_columns[-1] = (page_columns[-1][0], f"{page_columns[-1][1]}, {column.name}")
        return page_columns
