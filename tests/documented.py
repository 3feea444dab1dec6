"""Commands in the project's Markdown, and those among them that can run.

A command is a line of a fenced block without a language (```text is output), or a code span that
begins with a known program. An HTML comment before the block, or behind the span, excludes it:
`<!-- not run: why -->`. Help and dry runs run by default, all others with `-m slow`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.conftest import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
PROGRAMS = (
    "python",
    "mlflow",
    "mkdocs",
    "pytest",
    "pip",
    "docker",
    "kubectl",
    "optuna-dashboard",
    "evenhand",
)
TIMERS = (["time"], ["/usr/bin/time", "-f", "%E"])
MENTIONS = (["mlflow", "run"], ["python", "-m", "experiments"])
NOT_RUN = "not run: "
_NOTE = r"<!-- (?P<note>[^>]*?) -->"
_FENCE = re.compile(
    rf"(?:^{_NOTE}\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
# A line of a shell, with those that a backslash at its end joins to it.
_LINE = re.compile(r"(?:[^\n]*\\\n)*[^\n]+")
_SPAN = re.compile(rf"`(?P<body>(?:[^`\n]|\n(?!\n))+)`(?:\s*{_NOTE})?")
# What the reader fills in: FOLDER, NAME, …; and variables of the shell.
_BLANK = re.compile(r"(?<![\w.])[A-Z][A-Z_]{2,}(?![\w=])|…|\$")


@dataclass(frozen=True)
class Command:
    """Program with its arguments, and the note of its comment."""

    page: str
    line: int
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
            and not self.note.startswith(NOT_RUN)
            and not _BLANK.search(self.text)
        )

    @property
    def is_quick(self) -> bool:
        return self.runs and ("--help" in self.words or "--dry_run" in self.words)


@cache
def commands() -> tuple[Command, ...]:
    """Return the commands of the pages, README's first."""
    pages = sorted(PAGES, key=lambda page: page.name != "README.md")
    return tuple(command for page in pages for command in _of_page(page))


def _of_page(page: Path) -> Iterator[Command]:
    text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
    spans = _FENCE.sub(lambda fence: re.sub(r"[^\n]", " ", fence[0]), text)
    for fence in _FENCE.finditer(text):
        for line in (
            _LINE.finditer(text, fence.start("body"), fence.end("body"))
            if not fence["language"]
            else ()
        ):
            number = text.count("\n", 0, line.start()) + 1
            whole = line[0].replace("\\\n", " ")
            yield from (
                Command(name, number, words, fence["note"] or "") for words in _simple(whole)
            )
    for span in _SPAN.finditer(spans):
        for words in _simple(span["body"].replace("\\|", "|")):
            if words[0] in PROGRAMS and len(words) > 1 and list(words) not in MENTIONS:
                yield Command(
                    name, spans.count("\n", 0, span.start()) + 1, words, span["note"] or ""
                )


def _simple(line: str) -> Iterator[tuple[str, ...]]:
    """Yield the programs that a line of a shell starts, without timers and redirections."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # an apostrophe of prose in a code span
        return
    while words:
        end = words.index("&&") if "&&" in words else len(words)
        program, words = words[:end], words[end + 1 :]
        for timer in TIMERS:
            if program[: len(timer)] == timer:
                program = program[len(timer) :]
        for sign in (">", "|"):
            if sign in program:
                program = program[: program.index(sign)]
        while program and re.match(r"[A-Z_]+=", program[0]):
            program = program[1:]
        if program:
            yield tuple(program)
