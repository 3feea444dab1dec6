"""Rendering of a report as a page and Markdown (by Jinja) and in a terminal."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments.comparison.report.card import AnswerCard
from experiments.comparison.report.sections import Section
from experiments.config.console import Table, Text, box

_TERMINAL_STYLE = {
    "better": "bold green",
    "worse": "bold red",
    "differs": "bold",
    "alike": "cyan",
    "open": "yellow",
    "none": "dim",
}


def render(template: str, **content: object) -> str:
    """Return a filled template of this folder.

    Args:
        template: `report.html.j2` and `sweep.html.j2`, one file that needs nothing from outside;
            `report.md.j2`, whose figures are those in `figures/`; `card.md.j2`, without its title,
            for a run's description; `notebook.html.j2`, an element without style or script.
        content: values that the template names.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=lambda name: str(name).endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = escape_markdown
    return environment.get_template(template).render(**content)


def escape_markdown(text: str) -> str:
    """Return text that cannot break out of a Markdown table cell."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    for mark in "`[]*_":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped


def terminal_card(card: AnswerCard) -> Table:
    """Return the card without the content of the table below it."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    if card.failures:
        table.add_row("Failed", Text(card.failures, style="bold red"))
    name = "Answer"
    for text in filter(None, (card.settled, card.unsettled)):
        table.add_row(name, Text(text, style="bold"))
        name = ""
    if card.recommendation:
        table.add_row("To do", Text(card.recommendation, style="bold"))
    if card.conditions:
        table.add_row("Conditions", Text(card.conditions))
    for name, text in card.facts.items():
        table.add_row(name, Text(text))
    return table


def terminal(section: Section, title: str) -> Table:
    """Return the columns of a section that fit into a terminal."""
    shown = [at for at, column in enumerate(section.columns) if column.in_terminal]
    table = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for at in shown:
        column = section.columns[at]
        table.add_column(
            column.name,
            justify="right" if column.numeric else "left",
            overflow="fold",
            max_width=36,
        )
    for line in section.lines:
        if isinstance(line, str):
            table.add_section()
            table.add_row(Text(line, style="bold"))
        else:
            table.add_row(
                *(Text(line[at].text, _TERMINAL_STYLE.get(line[at].style, "")) for at in shown)
            )
    return table
