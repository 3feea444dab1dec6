"""`evenhand extend`: more blocks of a campaign that has ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.cli.campaign import conclude, end_in_order
from experiments.cli.commands import Command, Display
from experiments.config.settings import MAX_BLOCKS, CampaignSettings, setting


@dataclass(frozen=True)
class Extend:
    """Campaign that continues, and its further blocks."""

    run: str = setting("last", "the campaign: its run id, or last", group="campaign")
    blocks: int = setting(
        6, "number of further blocks", minimum=1, maximum=MAX_BLOCKS, group="campaign"
    )
    budget: str = setting(
        "none",
        "with until=settled, longest time, such as 90s, 30m or 2h; none: no limit",
        group="campaign",
    )
    journal: str = setting(
        CampaignSettings.journal,
        "folder that has the campaign's journal",
        path=True,
        group="records",
    )


def run(settings: Extend, display: Display) -> int:
    end_in_order()
    from experiments.run import pipeline, resume

    root = Path(settings.journal).resolve()
    request = resume.request(settings.run, settings.blocks, settings.budget, root)
    return conclude(pipeline.restart(*request, root, display), display)


COMMAND = Command("Measure more blocks of a campaign that has ended", Extend, run, bare=("run",))
