"""`evenhand replay`: the local journal, uploaded to a tracking server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.cli.codes import DONE, FAILED
from experiments.cli.commands import Command, Display
from experiments.config.settings import setting


@dataclass(frozen=True)
class Replay:
    """Records that `replay` uploads to a tracking server."""

    journal: str = setting(
        ".evenhand/journal",
        "one campaign's folder, or a folder of several",
        path=True,
        group="records",
    )


def run(settings: Replay, display: Display) -> int:
    from experiments.server.replay import replay

    return DONE if replay(Path(settings.journal), display) else FAILED


COMMAND = Command("Upload the local journal to a tracking server, exactly once", Replay, run)
