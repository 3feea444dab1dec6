"""`evenhand moved`: a local store whose folder was moved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.cli.codes import DONE
from experiments.cli.commands import Command, Display
from experiments.config.settings import setting


@dataclass(frozen=True)
class Moved:
    """Local store that was moved with its folder."""

    database: str = setting(
        "mlflow.db", "the store's file, in its new place beside mlruns", path=True, group="store"
    )


def run(settings: Moved, display: Display) -> int:
    from tracking import moved

    former = moved.rebase(Path(settings.database))
    for folder in former:
        copy = f"{settings.database}{moved.KEPT}"
        display.say(f"paths below {folder} lead here now; the database as it was: {copy}")
    if not former:
        display.say("all artifacts are where the store says; nothing to change")
    return DONE


COMMAND = Command(
    "Let a local store find its artifacts again after its folder was moved", Moved, run
)
