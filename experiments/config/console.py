"""Terminal output with Rich: progress of a campaign, and tables. No other module imports Rich."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterable
from types import TracebackType

from rich import box
from rich.box import Box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from experiments.config.durations import format_duration
from tracking import plain

__all__ = ["Box", "Display", "PlainConsole", "Table", "Text", "box", "plain_text"]
QUIET_SECONDS = 15.0
PLAIN_WIDTH = 160


class PlainConsole(Console):
    """Rich's console without markup and emoji, which escapes control characters."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(highlight=False, soft_wrap=True, markup=False, emoji=False, stderr=stderr)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield (
                segment if segment.control else Segment(plain.visible(segment.text), segment.style)
            )

    def on_broken_pipe(self) -> None:
        """Raise the error again, which the command line knows; Rich would exit with 1."""
        raise


def plain_text(renderable: RenderableType) -> str:
    """Return what a console prints, for a file."""
    console = PlainConsole()
    console.width, console.file = PLAIN_WIDTH, io.StringIO()
    console.print(renderable)
    text: str = console.file.getvalue()
    return text


class Display:
    """Progress bars for the campaign and its current cell.

    Without a terminal: a line for each finished cell, and one every 15 s.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or PlainConsole()
        if not self.console.is_terminal:
            self.console.width = PLAIN_WIDTH
        columns = (
            TextColumn("{task.description:<44}", markup=False),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(
            *columns, console=self.console, transient=True, disable=not self.console.is_terminal
        )
        self._all: TaskID | None = None
        self._now: TaskID | None = None
        self._done = 0
        self._total: int | None = None
        self._began = time.monotonic()
        self._title = ""
        self._last_line = time.monotonic()

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def rest(self) -> None:
        self._progress.stop()

    def say(self, text: str, style: str = "") -> None:
        self.console.print(plain.line(text), style=style or None, markup=False)

    def confirms(self, question: str) -> bool:
        """Return whether a user at a terminal agrees; False if there is none."""
        if not (sys.stdin and sys.stdin.isatty() and self.console.is_terminal):
            return False
        self._progress.stop()
        answer = self.console.input(question, markup=False)
        self._progress.start()
        return answer.strip().lower() in ("y", "yes")

    def expect(self, total: int) -> None:
        self._total, self._done, self._began = total, 0, time.monotonic()
        if self._all is not None:
            self._progress.remove_task(self._all)
        self._all = self._progress.add_task("all cells", total=total)

    def expect_more(self, cells: int, why: str) -> None:
        """Add cells to those that the progress bar expects, and print the reason."""
        self._total = (self._total or 0) + cells
        self.say(f"    {cells} more cell{'s' * (cells > 1)}: {why}")
        if self._all is not None:
            self._progress.update(self._all, total=self._total)

    def begin(self, title: str) -> None:
        self._title = title
        if self._total is None and not self.console.is_terminal:
            self.say(f"    {title}")
        if self._now is not None:
            self._progress.remove_task(self._now)
        self._now = self._progress.add_task(title, total=None)

    def step(self, phase: str, done: int, total: int | None) -> None:
        if self._now is None:
            self.begin(phase)
        text = f"{self._title} · {phase}" if self._title and phase != self._title else phase
        assert self._now is not None
        self._progress.update(self._now, description=text, completed=done, total=total)
        if not self.console.is_terminal and time.monotonic() - self._last_line > QUIET_SECONDS:
            self._last_line = time.monotonic()
            self.say(f"    {text} {done}/{total}" if total else f"    {text}")

    def waiting(self, what: str) -> None:
        self.step(f"waiting for {what}", 0, None)

    def finish(self, line: str, *, good: bool = True) -> None:
        self._done += 1
        if self._all is not None:
            self._progress.update(self._all, completed=self._done)
        self._last_line = time.monotonic()
        total = f"/{self._total}" if self._total else ""
        if self._total and self._total > self._done and not self.console.is_terminal:
            each = (self._last_line - self._began) / self._done
            line = f"{line}; about {format_duration(each * (self._total - self._done))} left"
        self.say(f"[{self._done:>2}{total}] {line}", style="" if good else "bold red")
