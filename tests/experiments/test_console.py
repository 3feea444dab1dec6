"""Output for terminals and tables: names from outside cannot act there."""

import csv
import io
import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from experiments.comparison import compare
from experiments.comparison.report import writing
from experiments.config.console import Display, PlainConsole
from tests.conftest import Place
from tests.experiments.comparison.campaigns import STEP, frame
from tests.experiments.datasets.folders import kaggle
from tracking import plain

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


def test_hostile_names_reach_no_output() -> None:
    text = print_hostile_names(terminal=False)
    assert not UNSEEN.search(text)
    for part in ("\\x1b[2J", "[/no such markup] [red]:smile:", "\\n! a forged warning"):
        assert part in text
    text = print_hostile_names(terminal=True)  # has escape sequences of the display itself
    assert not [part for part in ("\x1b[2J", "\x1b]0;", "\x9b", "\u202e") if part in text]


def printed(width: int) -> list[str]:
    """Return the lines of a verdict table in a terminal."""
    console = PlainConsole()
    console.width, console.file = width, io.StringIO()
    console.print(writing.terminal(compare(frame())))
    return console.file.getvalue().splitlines()


def test_table_fits_into_a_terminal_with_heads_over_their_columns() -> None:
    title, head, _, *lines = printed(160)
    assert (title[0], head[0]) == (title.strip()[0], head.strip()[0]), "both begin at the margin"
    (step,) = (line for line in lines if line.startswith("median training step"))
    for name, value in {"pytorch": "32.2 ms", "tensorflow": "32.0 ms", "blocks": "8"}.items():
        # numbers end where their head does
        assert step[: head.index(name) + len(name)].endswith(f" {value}")
    assert head.index("verdict") == step.index("equivalent")
    narrow = printed(80)
    assert max(map(len, narrow)) <= 80
    assert "…" not in "".join(narrow)


@pytest.mark.usefixtures("local_cells")
def test_file_of_the_data_is_named_escaped(place: Place, tmp_path: Path) -> None:
    folder = kaggle(tmp_path / "data")
    (folder / "captions.txt").rename(folder / "dataset_\x1b[2J\x1b]0;owned\x07.json")
    done = place.run(data=str(folder))
    assert done.returncode == 2
    assert done.stderr.removesuffix("\n").isprintable()
    assert "dataset_\\x1b[2J\\x1b]0;owned\\x07.json" in done.stderr


def test_tables_of_a_report_show_control_characters() -> None:
    comparison = compare(
        frame(levels=("pytorch", HOSTILE), factors={HOSTILE: 1.2}),
        baseline="pytorch",
        outcomes=[STEP],
    )
    text = writing.as_csv(comparison)
    assert not UNSEEN.search(text)
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row["b"] == plain.visible(HOSTILE)
    assert float(row["estimate"]) == comparison.rows[0].estimate
