"""What a person sees while a campaign runs: live bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

QUIET_SECONDS = 15.0
PLAIN_WIDTH = 160


def errors() -> Console:
    """Standard error, where standard output is for another program to read."""
    return Console(highlight=False, soft_wrap=True, stderr=True)


class Display:
    """A bar for the campaign and one for what runs now. Without a terminal: a plain line for a finished cell, and every 15 s."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        if not self.console.is_terminal:
            self.console.width = PLAIN_WIDTH
        columns = (
            TextColumn("{task.description:<44}"),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self._all: TaskID | None = None
        self._now: TaskID | None = None
        self._done = 0
        self._total: int | None = None
        self._title = ""
        self._last_line = time.monotonic()

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def rest(self) -> None:
        """No more bars: what follows is read, not watched."""
        self._progress.stop()

    def say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style or None, markup=False)

    def expect(self, total: int) -> None:
        """How many cells there will be from here on."""
        self._total, self._done = total, 0
        if self._all is not None:
            self._progress.remove_task(self._all)
        self._all = self._progress.add_task("all cells", total=total)

    def expect_another(self) -> None:
        """One cell more than was known."""
        self._total = (self._total or 0) + 1
        if self._all is not None:
            self._progress.update(self._all, total=self._total)

    def begin(self, title: str) -> None:
        self._title = title
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
            self.say(f"    {text} {done}{f'/{total}' if total else ''}")

    def finish(self, line: str, *, good: bool = True) -> None:
        """A cell has ended."""
        self._done += 1
        if self._all is not None:
            self._progress.update(self._all, completed=self._done)
        self._last_line = time.monotonic()
        self.say(f"[{self._done:>2}/{self._total}] {line}", style="" if good else "bold red")
