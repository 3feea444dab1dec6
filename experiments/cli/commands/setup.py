"""`evenhand setup`: an environment for each framework, in which it computes on the device."""

from __future__ import annotations

from experiments.cli.codes import DONE, FAILED
from experiments.cli.commands import Command, Display
from experiments.cli.settings import Setup


def run(settings: Setup, display: Display) -> int:
    from experiments.cli import setup

    return DONE if setup.make(settings, display) else FAILED


COMMAND = Command(
    "Make an environment for each framework, and use it in this folder's campaigns", Setup, run
)
