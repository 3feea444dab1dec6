"""`evenhand parity`: errors between frameworks, for every model."""

from __future__ import annotations

from experiments.cli.commands import Command, Display
from experiments.cli.settings import Parity


def run(settings: Parity, display: Display) -> int:
    from experiments.cli import parity

    return parity.run(settings, display)


COMMAND = Command(
    "Prove that a model computes the same in every framework, and show the errors", Parity, run
)
