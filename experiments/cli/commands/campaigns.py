"""`evenhand campaigns`: the campaigns of a tracking server."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.cli.codes import DONE
from experiments.cli.commands import Command
from experiments.config.settings import setting

MAX_LISTED = 10_000


@dataclass(frozen=True)
class Campaigns:
    """Which campaigns are listed."""

    experiment: tuple[str, ...] = setting(
        (), "experiments by name, several with commas; none: all", group="runs"
    )
    limit: int = setting(
        20, "at most so many, the newest", minimum=1, maximum=MAX_LISTED, group="output"
    )


def run(settings: Campaigns) -> int:
    from experiments.cli import campaign_list
    from experiments.config.console import Display

    found = campaign_list.campaigns(settings.experiment, settings.limit)
    with Display() as display:
        if found:
            display.console.print(campaign_list.as_table(found))
        display.say(campaign_list.next_step(found) if found else "no campaigns yet")
    return DONE


COMMAND = Command(
    "List the campaigns of a tracking server, the newest first, with their answers", Campaigns, run
)
