"""`evenhand sweep`: an experiment's settings, searched with Optuna."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.cli import campaign
from experiments.cli.codes import DONE
from experiments.cli.commands import Command
from experiments.config.settings import convert
from experiments.sweep.settings import Sweep
from tracking.errors import WrongCall


def run(settings: Sweep, given: Mapping[str, str]) -> int:
    if convert("dry_run", given.get("dry_run", "false"), bool):
        raise WrongCall("dry_run: a search chooses its cells as it goes; ask the experiment itself")
    campaign.end_in_order()
    from experiments.config.console import Display
    from experiments.sweep import worker

    with Display() as display:
        if over_batches := worker.campaign_over_batches(settings, given, display):
            return campaign.conclude(over_batches, display)
        at_work = worker.begin(settings, given, display)
        found = at_work.run()
        display.rest()
        if found.conclusion:
            campaign.print_tables(found.conclusion, display)
        campaign.print_findings(found.sentences, at_work.runner.warnings, display)
        if found.page is None:
            return DONE
        display.say("")
        display.say(f"search     {found.page}")
        display.say(f"settings   {', '.join(map(str, found.settings)) or 'none'}")
        display.say(
            f"dashboard  {found.dashboard}   (pip install -c constraints.txt -e '.[dashboard]')"
        )
        campaign.print_page(at_work.runner, display, delivered=found.delivered)
    return campaign.exit_code(found.conclusion)


COMMAND = Command(
    "Search an experiment's settings with Optuna, and judge what was found",
    Sweep,
    run,
    of_experiment=True,
)
