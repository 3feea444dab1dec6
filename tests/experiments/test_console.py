"""Output for terminals and spreadsheets: names from outside cannot act there."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from experiments.comparison import compare
from experiments.comparison.analyses import hypotheses
from experiments.comparison.analyses.hypotheses import HypothesisResult
from experiments.comparison.report import writing
from experiments.config.console import Display, PlainConsole
from experiments.metrics import Hypothesis
from tests.conftest import Place
from tests.experiments.comparison.campaigns import STEP, frame
from tests.experiments.datasets.folders import kaggle
from tracking import plain
from tracking.spreadsheet import as_csv

HOSTILE = "run\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp\u2066\x00\x7f\r\x85"
UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – text, 1.34×", "plain – text, 1.34×"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\u202eb\u2069", "a\\u202eb\\u2069"),
        ("\x9b\x7f\0", "\\u009b\\u007f\\x00"),
        ("\ud800", "\\ud800"),
        ("a\n\tb", "a\n\tb"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert plain.visible(text) == shown
    assert plain.visible(shown) == shown
    assert plain.line("a\nb\tc\rd") == "a\\nb\\tc\\rd"


def print_hostile_names(*, terminal: bool) -> str:
    """Return what a display prints, with hostile names in every place."""
    stream = io.StringIO()
    console = PlainConsole()
    console.file = stream
    console._force_terminal = terminal
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE))
    table.add_row("[/no such markup] [red]:smile:")
    with Display(console) as display:
        display.expect(1)
        display.begin(f"{HOSTILE} [/]")
        display.step(f"{HOSTILE} [/]", 1, 2)
        display.finish(HOSTILE)
        display.say(f"{HOSTILE}\n! a forged warning")
        display.rest()
        display.console.print(table)
    return stream.getvalue()


def test_file_gets_no_control_character() -> None:
    text = print_hostile_names(terminal=False)
    assert not UNSEEN.search(text)
    assert "\\x1b[2J" in text
    assert "[/no such markup] [red]:smile:" in text
    assert "\\n! a forged warning" in text


def test_terminal_gets_only_escape_sequences_of_the_display() -> None:
    text = print_hostile_names(terminal=True)
    assert not [part for part in ("\x1b[2J", "\x1b]0;", "\x9b", "\u202e") if part in text]


def printed(width: int) -> list[str]:
    """Return the lines of a verdict table in a terminal."""
    console = PlainConsole()
    console.width, console.file = width, io.StringIO()
    console.print(writing.terminal(compare(frame())))
    return console.file.getvalue().splitlines()


def test_heads_of_a_table_stand_over_their_columns() -> None:
    title, head, _, *lines = printed(160)
    assert (title[0], head[0]) == (title.strip()[0], head.strip()[0]), "both begin at the margin"
    (step,) = (line for line in lines if line.startswith("median training step"))
    for name, value in {"pytorch": "32.2 ms", "tensorflow": "32.0 ms", "blocks": "8"}.items():
        # numbers end where their head does
        assert step[: head.index(name) + len(name)].endswith(f" {value}")
    assert head.index("verdict") == step.index("equivalent")


def test_table_fits_into_a_narrow_terminal() -> None:
    lines = printed(80)
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


def test_file_of_the_data_is_named_escaped(place: Place, tmp_path: Path) -> None:
    folder = kaggle(tmp_path / "data")
    (folder / "captions.txt").rename(folder / "dataset_\x1b[2J\x1b]0;owned\x07.json")
    done = place.run(data=str(folder))
    assert done.returncode == 2
    assert done.stderr.removesuffix("\n").isprintable()
    assert "dataset_\\x1b[2J\\x1b]0;owned\\x07.json" in done.stderr


FORMULAS = (
    "=1+1",
    "+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "＝1+1",
    '=HYPERLINK("http://a.org","b")',
)


def parse(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_formulas_are_text_and_numbers_stay_numbers() -> None:
    (row,) = parse(as_csv([[*FORMULAS, "plain"]]))
    assert row == [*("'" + plain.visible(text) for text in FORMULAS), "plain"]
    values = [1, -1, -0.5, 1e-300, True, None, "-0.5", "+3", "-1e-05", "1.34× faster", "x", ""]
    (row,) = parse(as_csv([values]))
    assert row == ["" if value is None else str(value) for value in values]


@pytest.mark.parametrize("text", FORMULAS)
def test_tables_of_a_report_have_no_formula(text: str) -> None:
    comparison = compare(
        frame(levels=("pytorch", text), factors={text: 1.2}), baseline="pytorch", outcomes=[STEP]
    )
    (row,) = csv.DictReader(io.StringIO(writing.as_csv(comparison), newline=""))
    assert row["b"] == "'" + plain.visible(text)
    assert float(row["estimate"]) == comparison.rows[0].estimate
    result = HypothesisResult(Hypothesis(text, text, "learning", STEP, text), None, text)
    for line in parse(hypotheses.as_csv([result])):
        for cell in line:
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
