"""More blocks for a campaign that has ended: what is asked for, and the command that a report advises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from experiments import studies
from experiments.comparison.report.remarks import Advice
from experiments.config import settings as settings_
from experiments.config.settings import MAX_BLOCKS, CampaignSettings
from experiments.run import journal_runs, resume
from experiments.run import plan as plan_
from experiments.run.campaign import Campaign
from experiments.run.recorder import journal_option
from tracking import journal
from tracking.errors import WrongCall
from tracking.journal import Journal


@dataclass(frozen=True)
class Extension:
    """What `pipeline.restart` is called with, and the last block that it runs."""

    study: str
    run_id: str
    given: Mapping[str, str]
    last_block: int


def request(wanted: str, blocks: int, budget: str, root: Path) -> Extension:
    """Ask for so many more blocks of a campaign.

    A campaign of a fixed number gets that many on top of its number; one that goes on until it is
    settled, on top of those that it has run.

    Args:
        wanted: Its run id, or `last`.
        blocks: How many.
        budget: How long the launch may take.
        root: The folder of the journals.

    Raises:
        WrongCall: If there is no such campaign, or it is still running.
    """
    folder = resume.find(f"run={wanted}", wanted, root)
    description = journal.read_campaign(folder)
    Journal(folder).close()  # raises while another process writes it
    settings: CampaignSettings = settings_.from_values(studies.load(description["study"]).Settings, description["settings"])
    last = (_blocks_run(folder) if settings.until_settled else settings.blocks) + blocks
    if last > MAX_BLOCKS:
        raise WrongCall(f"blocks={blocks} makes {last:,} blocks; a campaign has at most {MAX_BLOCKS:,}")
    given = {"max_blocks": str(max(last, settings.max_blocks))} if settings.until_settled else {"blocks": str(last)}
    if settings.until_settled or budget != CampaignSettings.budget:
        given["budget"] = budget
    return Extension(description["study"], folder.name, {**given, "journal": str(root)}, last)


def _blocks_run(folder: Path) -> int:
    """Return the last block that any cell has ended well in."""
    results = journal_runs.cell_results(folder).items()
    return max((int(key.split("-")[1]) for key, result in results if result.ok and key.startswith("block-")), default=0)


def advice(campaign: Campaign, blocks: int, _stratum: str = "") -> Advice | None:
    """Return how so many more blocks are measured: by this campaign or, where looks have spent the error rate, a new one."""
    settings, study, root = campaign.settings, campaign.prepared.study, campaign.recorder.folder.parent
    spent = settings.until_settled and campaign.looks[-1:] == (settings.max_blocks,)
    if not spent:
        return _extended(campaign.recorder.run_id, blocks, root) if blocks <= MAX_BLOCKS else None
    most = settings.max_blocks + blocks
    if most <= MAX_BLOCKS and campaign.prepared.plan == plan_.of_study(campaign.prepared.module, settings):
        return Advice(
            f"A new campaign of at most {most:,} blocks, since the looks at this one have spent the error rate",
            (study, *options({**settings_.as_text(settings), "max_blocks": str(most)}, study)),
        )
    return None


def _extended(run_id: str, blocks: int, root: Path) -> Advice:
    more = f"{blocks:,} more block{'s' * (blocks > 1)}"
    return Advice(more, ("extend", run_id, f"--blocks={blocks}"), tuple(journal_option(root)))


def advice_of_ended(campaigns: Mapping[str, str], root: Path, blocks: int, stratum: str) -> Advice | None:
    """Return how so many more blocks are measured by one of several campaigns that have ended: that of the stratum.

    campaigns: run id → its name in the report. None where it is not known which, or where `extend` would
    refuse: its journal is not here, its looks have spent the error rate, or machine, packages or code changed.
    """
    name = next((part.partition("=")[2] for part in stratum.split(", ") if part.startswith("campaign=")), "")
    meant = [run_id for run_id, title in campaigns.items() if title == name]
    meant = meant or [run_id for run_id in campaigns if run_id.startswith(name)]
    if len(meant) != 1 or not (root / meant[0]).is_dir():
        return None
    try:
        extension = request(meant[0], blocks, CampaignSettings.budget, root)
        description = journal.read_campaign(root / extension.run_id)
        before = description["settings"]
        settings = settings_.from_values(studies.load(extension.study).Settings, before)
        lengths = {name: int(text) for name, text in extension.given.items() if name in ("blocks", "max_blocks")}
        settings = replace(settings_.as_before(settings, before), **lengths)
        resume.require_extendable(settings, before, root / extension.run_id, description["run"])
    except WrongCall:
        return None
    return _extended(meant[0], blocks, root)


def options(wanted: Mapping[str, str], study: str) -> list[str]:
    """Return the options that make these settings, where the preset does not."""
    module = studies.load(study)
    preset = {"preset": wanted["preset"]}
    otherwise = settings_.as_text(settings_.parse(module.Settings, module.PRESETS, preset))
    names = {field.name for field in settings_.for_users(module.Settings)} - {"settings", "resume"}
    differ = {name: text for name, text in wanted.items() if text != otherwise[name] and name in names}
    return [f"--{name}={text}" for name, text in {**preset, **differ}.items()]
