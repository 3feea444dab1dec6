"""`evenhand sweep`: an experiment's settings, searched with Optuna."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.cli import campaign
from experiments.cli.codes import DONE
from experiments.cli.commands import Command
from experiments.config.settings import convert
from experiments.sweep.settings import Sweep
from tracking.errors import UsageError


def run(settings: Sweep, options: Mapping[str, str]) -> int:
    if convert("dry_run", options.get("dry_run", "false"), bool):
        raise UsageError(
            "dry_run: a search chooses its cells as it goes; ask the experiment itself"
        )
    campaign.end_in_order()
    from experiments.config.console import Display
    from experiments.sweep import worker

    with Display() as display:
        if over_batches := worker.campaign_over_batches(settings, options, display):
            return campaign.conclude(over_batches, display)
        at_work = worker.begin(settings, options, display)
        result = at_work.run()
        display.rest()
        if result.conclusion:
            campaign.print_tables(result.conclusion, display)
        campaign.print_findings(result.sentences, at_work.runner.warnings, display)
        if result.page is None:
            return DONE
        display.say("")
        display.say(f"search     {result.page}")
        display.say(f"settings   {', '.join(map(str, result.settings)) or 'none'}")
        display.say(
            f"dashboard  {result.dashboard}   (pip install -c constraints.txt -e '.[dashboard]')"
        )
        campaign.print_page(at_work.runner, display, delivered=result.delivered)
    return campaign.exit_code(result.conclusion)


COMMAND = Command(
    "Search an experiment's settings with Optuna, and judge what was found",
    Sweep,
    run,
    of_experiment=True,
)
