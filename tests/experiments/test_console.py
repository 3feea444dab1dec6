"""What reaches a terminal: names from outside print as what they are, and can neither move the cursor nor forge a line."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from experiments.config.console import Display, PlainConsole
from tests.conftest import Place
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
def test_what_does_not_print_is_shown(text: str, shown: str) -> None:
    assert plain.visible(text) == shown
    assert plain.visible(shown) == shown
    assert plain.line("a\nb\tc\rd") == "a\\nb\\tc\\rd"


def test_json_stays_json() -> None:
    text = json.dumps([HOSTILE, "\U000e0041"], ensure_ascii=False)
    assert json.loads(plain.visible(text)) == [HOSTILE, "\U000e0041"]
    assert not UNSEEN.search(plain.visible(text))


def _shown(terminal: bool) -> str:
    """Everything that a display shows, with hostile names in every place."""
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


def test_no_name_reaches_a_terminal_as_it_is() -> None:
    plainly = _shown(terminal=False)
    assert not UNSEEN.search(plainly)
    assert "\\x1b[2J" in plainly
    assert "[/no such markup] [red]:smile:" in plainly
    assert "\\n! a forged warning" in plainly


def test_a_terminal_gets_the_escape_sequences_of_our_own_alone() -> None:
    shown = _shown(terminal=True)
    assert "\x1b[2J" not in shown
    assert "\x1b]0;" not in shown
    assert "\x9b" not in shown
    assert "\u202e" not in shown


def test_a_file_of_the_data_is_named_as_it_is(place: Place, tmp_path: Path) -> None:
    folder = kaggle(tmp_path / "data")
    (folder / "captions.txt").rename(folder / "dataset_\x1b[2J\x1b]0;owned\x07.json")
    done = place.run(data=str(folder))
    assert done.returncode == 2
    assert done.stderr.removesuffix("\n").isprintable()
    assert "dataset_\\x1b[2J\\x1b]0;owned\\x07.json" in done.stderr
