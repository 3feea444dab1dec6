"""A campaign that was begun before: found by its journal, with the settings of its beginning, and perhaps more blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import studies
from experiments.comparison.report.remarks import Advice
from experiments.config import settings as settings_
from experiments.config.settings import MAX_BLOCKS, CampaignSettings
from experiments.run import journal_runs
from experiments.run import plan as plan_
from experiments.run.campaign import Campaign
from experiments.run.cell_run import environment_digest
from experiments.run.recorder import journal_option
from tracking import journal, provenance
from tracking.errors import WrongCall
from tracking.journal import Journal

# No campaigns, though their folders lie among the campaigns' journals.
OTHERS = ("sweep", "export")


def find(option: str, wanted: str, root: Path, study: str = "") -> Path:
    """Return the journal folder of a campaign.

    Args:
        option: What the user set, for the error.
        wanted: The campaign's run id, or `last`.
        root: The folder of the journals.
        study: Of which it has to be, if any.

    Raises:
        WrongCall: If there is none.
    """
    descriptions = journal.descriptions(root, wanted)
    folders = [
        folder
        for folder, kept in descriptions
        if kept["study"] == study or (not study and kept["study"] not in OTHERS)
    ]
    if not folders:
        what = f"no campaign of {study}" if study else "no campaign"
        raise WrongCall(
            f"{option}: {what} has its journal in {root}; give journal=DIR of the machine that ran it"
        )
    if wanted == "last":
        return folders[-1]
    for folder in folders:
        if folder.name == wanted:
            return folder
    raise WrongCall(
        f"{option}: no campaign {wanted} in {root}; have {', '.join(folder.name for folder in folders[-5:])}"
    )


def same_settings(
    study: str, recorded: Mapping[str, Any], given: Mapping[str, str]
) -> CampaignSettings:
    """Return the settings as they were, except for where their folders are now.

    Raises:
        WrongCall: For others than those recorded, and for a newer setting whose value they may not have had.
    """
    module = studies.load(study)
    settings = settings_.from_values(module.settings, recorded)
    wanted = settings_.parse(module.settings, module.presets, given)
    for name in set(given) - settings_.silent(settings) - open_ended(settings):
        before, now = getattr(settings, name), getattr(wanted, name)
        if before != now:
            was = settings_.to_text(before)
            raise WrongCall(
                f"resume: {name} was {was} at the beginning and cannot become {given[name]}; start anew"
            )
    changed = set(given) & {"cache", "journal", *open_ended(settings)}
    if given.get("executor") == "local":  # what a cluster was asked for goes with it
        changed |= settings_.of_group(settings, "cluster")
    return dataclasses.replace(settings, **{name: getattr(wanted, name) for name in changed})


def open_ended(settings: CampaignSettings) -> set[str]:
    """Return the settings that a resumption may change: how long it goes on, and where."""
    length = {"max_blocks", "budget"} if settings.until_settled else {"blocks"}
    return length | settings_.of_group(settings, "cluster")


def require_extendable(
    settings: CampaignSettings, before: Mapping[str, Any], folder: Path, run: str
) -> None:
    """Raise WrongCall if the blocks that settings ask for cannot be judged together with those there are.

    What looks have spent of the error rate is gone, and blocks have to come from where the first ones did.

    Args:
        settings: As they would be.
        before: As they were until now.
        folder: Of the campaign's journal.
        run: The campaign's run in it.
    """
    name = "max_blocks" if settings.until_settled else "blocks"
    now, was = settings.most_blocks, before.get(name, settings.most_blocks)
    looks = journal_runs.looks(folder, run)
    if now == was:
        return
    if settings.until_settled and looks and looks[-1] >= was:
        raise WrongCall(
            f"max_blocks was {was}, and the last look has spent all of the error rate; start anew with max_blocks={now}"
        )
    if settings.until_settled and looks and now <= looks[-1]:
        raise WrongCall(f"max_blocks={now}: {looks[-1]} blocks have been judged; choose more")
    if not settings.until_settled and now < was:
        raise WrongCall(
            f"resume: blocks was {was} at the beginning and cannot become {now}; choose more, or start anew"
        )
    if now > was:
        _require_same_origin(folder, run, settings)


def _require_same_origin(folder: Path, run: str, settings: CampaignSettings) -> None:
    """Raise WrongCall where machine, packages or code are not those of the first blocks, as far as the journal has them."""
    first = journal_runs.tags(folder, run)
    here = {
        "machine": (provenance.fingerprint(), "measure them there"),
        "environment": (environment_digest(settings), "install its packages and set its variables"),
        "commit": (provenance.commit(), "check it out"),
    }
    for name, (now, remedy) in here.items():
        was = first.get(name, "")
        if was and was != now:
            raise WrongCall(
                f"more blocks need the {name} of the first, {was}; here it is {now or 'unknown'}: {remedy}, or start anew"
            )


def reported_looks(folder: Path, run: str, blocks: int) -> tuple[int, ...]:
    """Return the looks of a campaign of a fixed number of blocks: after how many of them a report was written.

    blocks: their number until now, which its last report was about if there was one since the last look.
    """
    tagged_at, looks = journal_runs.read(folder)[run].tagged_at, journal_runs.looks(folder, run)
    reported, looked = (tagged_at.get(name, journal_runs.NEVER) for name in ("verdict", "looks"))
    return tuple(sorted({*looks, blocks})) if reported > looked else looks


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
    folder = find(f"run={wanted}", wanted, root)
    description = journal.read_campaign(folder)
    Journal(folder).close()  # raises while another process writes it
    settings: CampaignSettings = settings_.from_values(
        studies.load(description["study"]).settings, description["settings"]
    )
    last = (_blocks_run(folder) if settings.until_settled else settings.blocks) + blocks
    if last > MAX_BLOCKS:
        raise WrongCall(
            f"blocks={blocks} makes {last:,} blocks; a campaign has at most {MAX_BLOCKS:,}"
        )
    given = (
        {"max_blocks": str(max(last, settings.max_blocks))}
        if settings.until_settled
        else {"blocks": str(last)}
    )
    if settings.until_settled or budget != CampaignSettings.budget:
        given["budget"] = budget
    return Extension(description["study"], folder.name, {**given, "journal": str(root)}, last)


def _blocks_run(folder: Path) -> int:
    """Return the last block that any cell has ended well in."""
    results = journal_runs.cell_results(folder).items()
    return max(
        (
            int(key.split("-")[1])
            for key, result in results
            if result.ok and key.startswith("block-")
        ),
        default=0,
    )


def advice(campaign: Campaign, blocks: int, _stratum: str = "") -> Advice | None:
    """Return how so many more blocks are measured: by this campaign or, where looks have spent the error rate, a new one."""
    settings, study, root = (
        campaign.settings,
        campaign.prepared.study,
        campaign.recorder.folder.parent,
    )
    spent = settings.until_settled and campaign.looks[-1:] == (settings.max_blocks,)
    if not spent:
        return _extended(campaign.recorder.run_id, blocks, root) if blocks <= MAX_BLOCKS else None
    most = settings.max_blocks + blocks
    if most <= MAX_BLOCKS and campaign.prepared.plan == plan_.of_study(
        campaign.prepared.module, settings
    ):
        return Advice(
            f"A new campaign of at most {most:,} blocks, since the looks at this one have spent the error rate",
            (study, *options({**settings_.as_text(settings), "max_blocks": str(most)}, study)),
        )
    return None


def _extended(run_id: str, blocks: int, root: Path) -> Advice:
    more = f"{blocks:,} more block{'s' * (blocks > 1)}"
    return Advice(more, ("extend", run_id, f"--blocks={blocks}"), tuple(journal_option(root)))


def advice_of_ended(
    campaigns: Mapping[str, str], root: Path, blocks: int, stratum: str
) -> Advice | None:
    """Return how so many more blocks are measured by one of several campaigns that have ended: that of the stratum.

    campaigns: run id → its name in the report. None where it is not known which, or where `extend` would
    refuse: its journal is not here, its looks have spent the error rate, or machine, packages or code changed.
    """
    name = next(
        (part.partition("=")[2] for part in stratum.split(", ") if part.startswith("campaign=")), ""
    )
    meant = [run_id for run_id, title in campaigns.items() if title == name]
    meant = meant or [run_id for run_id in campaigns if run_id.startswith(name)]
    if len(meant) != 1 or not (root / meant[0]).is_dir():
        return None
    try:
        extension = request(meant[0], blocks, CampaignSettings.budget, root)
        description = journal.read_campaign(root / extension.run_id)
        before = description["settings"]
        settings = settings_.from_values(studies.load(extension.study).settings, before)
        lengths: dict[str, Any] = {
            name: int(text)
            for name, text in extension.given.items()
            if name in ("blocks", "max_blocks")
        }
        settings = dataclasses.replace(settings, **lengths)
        require_extendable(settings, before, root / extension.run_id, description["run"])
    except WrongCall:
        return None
    return _extended(meant[0], blocks, root)


def options(wanted: Mapping[str, str], study: str) -> list[str]:
    """Return the options that make these settings, where the preset does not."""
    module = studies.load(study)
    preset = {"preset": wanted["preset"]}
    otherwise = settings_.as_text(settings_.parse(module.settings, module.presets, preset))
    names = {field.name for field in settings_.for_users(module.settings)} - {"settings", "resume"}
    differ = {
        name: text for name, text in wanted.items() if text != otherwise[name] and name in names
    }
    return [f"--{name}={text}" for name, text in {**preset, **differ}.items()]
