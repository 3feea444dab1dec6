"""Commands in the project's Markdown, and those among them that can run.

A command is a line of a fenced block without a language (```text is output), or a code span. An
HTML comment before the block, or behind the span, excludes it: `<!-- not run: why -->`. All others
run with `-m slow`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path

from tests.conftest import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
PROGRAMS = ("python", "mlflow", "mkdocs", "pytest", "evenhand")
MENTIONS = (["mlflow", "run"], ["python", "-m", "experiments"])
OTHERS = ("docker", "kubectl")  # which take the same words as names
_CODE = re.compile(
    r"^(?:<!-- (?P<before>[^>]*?) -->\n)?```(?P<language>\w*)\n(?P<block>.*?)^```$"
    r"|`(?P<span>(?:[^`\n]|\n(?!\n))+)`(?:\s*<!-- (?P<behind>[^>]*?) -->)?",
    re.MULTILINE | re.DOTALL,
)
# A line of a shell, with those that a backslash at its end joins to it.
_LINE = re.compile(r"(?:[^\n]*\\\n)*[^\n]+")
# What the reader fills in: FOLDER, NAME, …; and variables of the shell.
_BLANK = re.compile(r"(?<![\w.])[A-Z][A-Z_]{2,}(?![\w=])|…|\$")


@dataclass(frozen=True)
class Command:
    """Program with its arguments, and the note of its comment."""

    page: str
    words: tuple[str, ...]
    note: str

    @property
    def text(self) -> str:
        return shlex.join(self.words)

    @property
    def runs(self) -> bool:
        """True for a program of evenhand's with nothing to fill in."""
        starts = (("mlflow", "run"), ("python", "-m"))
        return (
            (self.words[0] == "evenhand" or self.words[:2] in starts)
            and "venv" not in self.words
            and not self.note.startswith("not run: ")
            and not _BLANK.search(self.text)
        )


@cache
def commands() -> tuple[Command, ...]:
    """Return the commands of the pages, README's first."""
    pages = sorted(PAGES, key=lambda page: page.name != "README.md")
    return tuple(command for page in pages for command in _of_page(page))


def _of_page(page: Path) -> Iterator[Command]:
    name = page.relative_to(ROOT).as_posix()
    for code in _CODE.finditer(page.read_text(encoding="utf-8")):
        if not code["language"]:
            note = code["before"] or code["behind"] or ""
            lines = _LINE.findall(code["block"]) if code["block"] else [code["span"] or ""]
            programs = (words for line in lines for words in _programs(line))
            yield from (Command(name, words, note) for words in programs)


def _programs(line: str) -> Iterator[tuple[str, ...]]:
    """Yield the calls of `PROGRAMS`, without timers, variables and redirections."""
    for part in line.replace("\\\n", " ").replace("\\|", "|").split("&&"):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:  # an apostrophe of prose in a code span
            continue
        words = list(takewhile(lambda word: word not in (">", "|"), words))
        starts = [number for number, word in enumerate(words) if word in PROGRAMS]
        call = words[starts[0] :] if starts else []
        if len(call) > 1 and call not in MENTIONS and words[0] not in OTHERS:
            yield tuple(call)
