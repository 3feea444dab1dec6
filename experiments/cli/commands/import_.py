"""`evenhand import`: an export of another server, or results of other benchmark programs."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.cli.codes import DONE
from experiments.cli.commands import Command, Display, replay
from experiments.config.settings import setting


@dataclass(frozen=True)
class Import(replay.Replay):
    """Records or result files that become runs."""

    format: str = setting(
        "journal",
        "journal: an export of evenhand; else result files of that program",
        choices=("journal", "pyperf", "hyperfine", "json"),
        group="records",
    )
    files: tuple[str, ...] = setting(
        (), "result files; LEVEL=FILE if a file's name is not the level's", group="records"
    )
    experiment: str = setting("imported", "experiment that gets the runs", group="records")


def run(settings: Import, display: Display) -> int:
    if settings.format == "journal":
        return replay.run(settings, display)
    from experiments.server import benchmark_files

    call = benchmark_files.import_files(
        settings.format, settings.files, settings.experiment, display
    )
    display.say(f"compare    {call}")
    return DONE


COMMAND = Command(
    "Upload an export, or results of pyperf, hyperfine or a JSON list, exactly once",
    Import,
    run,
    bare=("files",),
)
