"""`evenhand compare`: comparison of finished runs."""

from __future__ import annotations

from experiments.cli.commands import Command, Display
from experiments.cli.settings import Compare


def run(settings: Compare, display: Display) -> int:
    from experiments.cli import compare
    from experiments.config import console

    if settings.format != "table":  # another program reads standard output
        display = console.Display(console.PlainConsole(stderr=True))
    return compare.run(settings, display)


COMMAND = Command("Judge finished runs of a tracking server, whoever made them", Compare, run)
