"""`evenhand export`: runs as a journal, for another server."""

from __future__ import annotations

from experiments.cli.codes import DONE
from experiments.cli.commands import Command, Display
from experiments.config import shell
from experiments.server.settings import Export


def run(settings: Export, display: Display) -> int:
    from experiments.server.transfer import export

    folder, count = export(settings, display.step)
    display.rest()
    again = shell.command("import", "--journal", str(folder))
    display.say(f"{count} runs are in {folder}; send them to another server: {again}")
    return DONE


COMMAND = Command("Export runs of a server as a journal, for another server", Export, run)
