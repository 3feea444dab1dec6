"""`evenhand import`: results of other benchmark programs."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.cli.codes import DONE
from experiments.cli.commands import Command, Display
from experiments.config.settings import setting


@dataclass(frozen=True)
class Import:
    """Result files that become runs."""

    format: str = setting(
        "json",
        "program that wrote the files; json: a list of results",
        choices=("pyperf", "hyperfine", "json"),
        group="records",
    )
    files: tuple[str, ...] = setting(
        (), "result files; LEVEL=FILE if a file's name is not the level's", group="records"
    )
    experiment: str = setting("imported", "experiment that gets the runs", group="records")


def run(settings: Import, display: Display) -> int:
    from experiments.server import benchmark_files

    call = benchmark_files.import_files(
        settings.format, settings.files, settings.experiment, display
    )
    display.say(f"compare    {call}")
    return DONE


COMMAND = Command(
    "Upload results of pyperf, hyperfine or a JSON list, exactly once",
    Import,
    run,
    bare=("files",),
)
