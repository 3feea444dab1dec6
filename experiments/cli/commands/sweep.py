"""`evenhand sweep`: an experiment's settings, searched with Optuna."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.cli import campaign
from experiments.cli.codes import DONE
from experiments.cli.commands import Command, Display
from experiments.config.settings import convert
from experiments.sweep.settings import Sweep
from tracking.errors import ErrorCode, UsageError


def run(settings: Sweep, options: Mapping[str, str], display: Display) -> int:
    if convert("dry_run", options.get("dry_run", "false"), bool):
        raise UsageError(
            ErrorCode.UNSUPPORTED,
            "dry_run: a search chooses its cells as it goes; take the experiment's own dry_run",
        )
    campaign.end_in_order()
    from experiments.sweep import worker

    process = worker.begin(settings, options, display)
    result = process.run()
    display.rest()
    campaign.print_warnings(process.recorder.warnings, display)
    if result.conclusion and result.conclusion.answer:
        campaign.print_answer(result.conclusion.answer, display)
    for line in result.sentences:
        display.say(line)
    if result.page is None:
        return DONE
    display.say("")
    display.say(f"search     {result.page}")
    for command in result.commands:
        display.say(f"best       {command}")
    display.say(f"dashboard  {result.dashboard}   (it needs the extra 'dashboard')")
    campaign.print_page(process.recorder, display, delivered=result.delivered)
    return campaign.exit_code(result.conclusion)


COMMAND = Command(
    "Search an experiment's settings with Optuna, and judge what was found",
    Sweep,
    run,
    of_experiment=True,
)
