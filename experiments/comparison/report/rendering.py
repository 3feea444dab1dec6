"""Rendering of a report as a page and Markdown (by Jinja) and in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from experiments.comparison.report.card import AnswerCard
from experiments.comparison.report.sections import Cell, Section
from experiments.config.console import Table, Text, box

if TYPE_CHECKING:
    from experiments.comparison.report.canvas import Figure

_TERMINAL_STYLE = {
    "better": "bold green",
    "worse": "bold red",
    "differs": "bold",
    "alike": "cyan",
    "open": "yellow",
    "none": "dim",
}


# Of fewer rows all are seen at once.
MIN_TO_FILTER = 12


@dataclass(frozen=True)
class Document:
    """A report.

    Attributes:
        sentences: the results, the most important first.
        notes: lines at its end.
    """

    card: AnswerCard
    subtitle: str
    warnings: Sequence[str]
    sentences: Sequence[str]
    body: Sequence[Section | Figure]
    notes: Sequence[str]


def page(document: Document) -> str:
    """Return one HTML file that needs nothing from outside."""
    return (
        _environment()
        .get_template("report.html.j2")
        .render(document=document, least_to_filter=MIN_TO_FILTER)
    )


def fragment(warnings: Sequence[str], sentences: Sequence[str], table: Section) -> str:
    """Return what a notebook shows: an element without style or script."""
    return (
        _environment()
        .get_template("notebook.html.j2")
        .render(warnings=warnings, sentences=sentences, table=table)
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["css"] = _in_css
    return environment


def _in_css(text: str) -> Markup:
    """Return a string of CSS in which special characters are numbers."""
    escaped = "".join(
        character if character.isalnum() or character in " .,()%-" else f"\\{ord(character):x} "
        for character in text
    )
    return Markup(f'"{escaped}"')


def markdown(document: Document) -> str:
    """Return Markdown whose figures are those in `figures/`."""
    title, _, card = markdown_card(document.card).partition("\n\n")
    parts = [title, *(f"> **{_escaped(line)}**" for line in document.warnings), card]
    parts.append(_escaped(document.subtitle))
    parts.append("\n".join(f"- {_escaped(line)}" for line in document.sentences))
    for element in document.body:
        if isinstance(element, Section):
            parts += _markdown_section(element)
        else:
            parts += [f"![{element.title}](figures/{element.name}.png)", _escaped(element.caption)]
    return "\n\n".join([*parts, *map(_escaped, document.notes)]) + "\n"


def markdown_card(card: AnswerCard) -> str:
    """Return the card, whose first lines hold the answer, for a pull request or a chat."""
    parts = [f"# {_escaped(card.title)}", f"**{_escaped(card.answer)}**"]
    parts += [f"⚠ {_escaped(card.caution)}"] if card.caution else []
    parts.append(_escaped(card.question))
    rows = [
        (outcome.label, outcome.effect, outcome.interval, outcome.verdict)
        for outcome in card.outcomes
    ]
    if rows:
        header = (_markdown_row(("outcome", "effect", "95 % CI", "verdict")), "|---|---|---|---|")
        parts.append("\n".join([*header, *map(_markdown_row, rows)]))
    parts += [f"{card.left_out} more outcomes in the report."] if card.left_out else []
    if card.advice:
        parts.append(f"{_escaped(card.advice.what)}, on the machine that measured these:")
        parts.append(f"    {card.advice.command}")
    facts = [f"- {name}: {_escaped(text)}" for name, text in card.facts.items()]
    return "\n\n".join([*parts, "\n".join(facts)])


def description_card(card: AnswerCard) -> str:
    """Return the card without its title, for a run's description in MLflow."""
    return markdown_card(card).partition("\n\n")[2]


def terminal_card(card: AnswerCard) -> Table:
    """Return the card without the content of the table below it."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("Question", Text(card.question))
    table.add_row("Answer", Text(card.answer, style="bold"))
    for name, text in card.facts.items():
        table.add_row(name, Text(text))
    return table


def _markdown_section(section: Section) -> list[str]:
    if section.folded:
        return []
    parts = [f"{'#' * section.level} {_escaped(section.title)}"]
    parts += [f"> **{_escaped(section.warning)}**"] if section.warning else []
    parts += [_escaped(section.caption)] if section.caption else []
    return [*parts, _markdown_table(section)] if section.rows else parts


def _markdown_table(section: Section) -> str:
    lines = list(section.lines(once=False))
    rows = [line for line in lines if not isinstance(line, str)]
    shown = [
        (at, column)
        for at, column in enumerate(section.columns)
        if not column.under or any(row[at].text for row in rows)
    ]
    texts = [_markdown_row([column.name for _, column in shown])]
    texts.append("|" + "".join("--:|" if column.numeric else "---|" for _, column in shown))
    for line in lines:
        if isinstance(line, str):
            texts.append(_markdown_row([line, *[""] * (len(shown) - 1)]))
        else:
            texts.append(_markdown_row([line[at].text for at, _ in shown]))
    return "\n".join(texts)


def _markdown_row(texts: Sequence[str]) -> str:
    return "|" + "".join(f" {_escaped(text)} |" for text in texts)


def _escaped(text: str) -> str:
    """Return text that cannot break out of a Markdown table cell."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    for mark in "`[]*_":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped


def terminal(section: Section, title: str) -> Table:
    """Return the columns of a section that fit into a terminal."""
    shown = [at for at, column in enumerate(section.columns) if column.terminal]
    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False
    )
    for at in shown:
        column = section.columns[at]
        table.add_column(
            column.name,
            justify="right" if column.numeric else "left",
            overflow="fold",
            min_width=column.terminal,
            max_width=36,
        )
    for line in section.lines():
        if isinstance(line, str):
            table.add_section()
            table.add_row(Text(line, style="bold"))
        else:
            table.add_row(*(_styled(line[at]) for at in shown))
    return table


def _styled(cell: Cell) -> Text:
    return Text(cell.text, style=_TERMINAL_STYLE.get(cell.style, ""))
