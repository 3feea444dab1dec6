"""`evenhand admin`: teams, users and permissions of a shared server."""

from __future__ import annotations

from experiments.cli.campaign import print_findings
from experiments.cli.codes import DONE
from experiments.cli.commands import Command, Display
from experiments.server.settings import Admin


def run(settings: Admin, display: Display) -> int:
    from experiments.server.admin import administer

    lines, table = administer(settings)
    if table:
        display.console.print(table)
    print_findings(lines, [], display)
    return DONE


COMMAND = Command("Teams, users and permissions of a shared tracking server", Admin, run)
