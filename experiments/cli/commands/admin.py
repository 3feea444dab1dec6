"""`evenhand admin`: teams, users and permissions of a shared server."""

from __future__ import annotations

from experiments.cli.codes import DONE
from experiments.cli.commands import Command, Display
from experiments.server.settings import Admin


def run(settings: Admin, display: Display) -> int:
    from experiments.server.admin import administer

    lines, table = administer(settings)
    if table:
        display.console.print(table)
    for line in lines:
        display.say(line)
    return DONE


COMMAND = Command("Teams, users and permissions of a shared tracking server", Admin, run)
