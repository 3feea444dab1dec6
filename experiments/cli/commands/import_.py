"""`evenhand import`: an export of another server, uploaded as a journal is."""

from __future__ import annotations

from experiments.cli.commands import Command
from experiments.cli.commands.replay import Replay, run

COMMAND = Command("Upload an export to a tracking server, exactly once", Replay, run)
