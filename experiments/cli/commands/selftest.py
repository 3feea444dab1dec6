"""`evenhand selftest`: known work, measured on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.cli.codes import DONE, FAILED
from experiments.cli.commands import Command
from experiments.config.settings import setting


@dataclass(frozen=True)
class Selftest:
    """Which checks of the acceptance kit run, and where."""

    device: str = setting(
        "auto",
        "where known work is measured; auto: the GPU if there is one",
        choices=("auto", "cpu", "cuda"),
        group="checks",
    )
    checks: tuple[int, ...] = setting(
        (),
        "numbers of checks, several with commas; none: all",
        minimum=1,
        maximum=16,
        group="checks",
    )
    frameworks: tuple[str, ...] = setting(
        ("pytorch", "pytorch+compile", "keras-torch", "keras-jax", "tensorflow"),
        "frameworks of the checks; what is not installed is skipped",
        group="checks",
    )
    output: str = setting(
        ".evenhand/selftest",
        "folder that gets selftest.json and selftest.md",
        path=True,
        group="output",
    )


def run(settings: Selftest) -> int:
    from experiments.cli import selftest
    from experiments.config.console import Display

    with Display() as display:
        values, paths = selftest.selftest(settings, display)
        counts = ", ".join(f"{count} {status}" for status, count in values["counts"].items())
        display.say(f"{counts}; figures and limits: {paths[0]}, {paths[1]}")
    return FAILED if values["counts"]["failed"] else DONE


COMMAND = Command(
    "Measure known work on this machine's device: an acceptance test of the measurement",
    Selftest,
    run,
)
