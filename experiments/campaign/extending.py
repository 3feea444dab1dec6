"""More blocks for a campaign that has ended: who can have them, what was seen before, and the command that asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments import studies
from experiments.campaign.campaign import Campaign, ended_cells, looks_so_far
from experiments.campaign.runner import environment_digest, journal_option
from experiments.comparison.report.remarks import Advice
from experiments.config import settings as settings_
from experiments.config.settings import MAX_BLOCKS, CampaignSettings
from experiments.planning import plan as plan_
from tracking import journal, provenance
from tracking.errors import WrongCall
from tracking.journal import Journal
from tracking.records import RunOpened, RunOutcome, Tags

# No campaigns, though their folders lie among the campaigns' journals.
OTHERS = ("sweep", "export")


@dataclass(frozen=True)
class Extension:
    """What a resumption is asked for in `launch.resume`'s words, and the last block that it runs."""

    study: str
    run_id: str
    given: Mapping[str, str]
    last_block: int


def asked(wanted: str, blocks: int, budget: str, root: Path) -> Extension:
    """So many more blocks of a campaign. wanted: its run id, or `last`.

    A campaign of a fixed number gets that many on top of its number; one that goes on until it is settled, on top of those
    that it has run. Raises WrongCall where there is no such campaign, or it is still running.
    """
    folder, kept = _find(wanted, root)
    Journal(folder).close()  # raises while another process writes it
    settings = settings_.from_values(studies.load(kept["study"]).settings, kept["settings"])
    last = (_blocks_run(folder) if settings.until_settled else settings.blocks) + blocks
    if last > MAX_BLOCKS:
        raise WrongCall(f"blocks={blocks} makes {last:,} blocks; a campaign has at most {MAX_BLOCKS:,}")
    given = {"max_blocks": str(max(last, settings.max_blocks))} if settings.until_settled else {"blocks": str(last)}
    if settings.until_settled or budget != CampaignSettings.budget:
        given["budget"] = budget
    return Extension(kept["study"], folder.name, {**given, "journal": str(root)}, last)


def _find(wanted: str, root: Path) -> tuple[Path, dict[str, Any]]:
    found = {folder.name: (folder, kept) for folder, kept in journal.descriptions(root, wanted) if kept["study"] not in OTHERS}
    if not found:
        raise WrongCall(f"run={wanted}: no campaign has its journal in {root}; give journal=DIR of the machine that ran it")
    name = list(found)[-1] if wanted == "last" else wanted
    if name not in found:
        raise WrongCall(f"run={wanted}: no such campaign in {root}; have {', '.join(list(found)[-5:])}")
    return found[name]


def _blocks_run(folder: Path) -> int:
    """The last block that any cell has ended well in."""
    ok = [key for key, end in ended_cells(folder).items() if end.outcome == RunOutcome.OK and key.startswith("block-")]
    return max((int(key.split("-")[1]) for key in ok), default=0)


def allowed(settings: CampaignSettings, before: Mapping[str, Any], folder: Path, run: str) -> CampaignSettings:
    """The settings, if the blocks that they ask for can still be judged beside those there are. Raises WrongCall.

    before: the settings until now. What looks have spent of the error rate is gone, and blocks have to come from where the
    first ones did.
    """
    name = "max_blocks" if settings.until_settled else "blocks"
    now, was = settings.most_blocks, before.get(name, settings.most_blocks)
    looks = looks_so_far(folder, run)
    if now == was:
        return settings
    if settings.until_settled and looks and looks[-1] >= was:
        raise WrongCall(
            f"max_blocks was {was}, and the last look has spent all of the error rate; start anew with max_blocks={now}"
        )
    if settings.until_settled and looks and now <= looks[-1]:
        raise WrongCall(f"max_blocks={now}: {looks[-1]} blocks have been judged; choose more")
    if not settings.until_settled and now < was:
        raise WrongCall(f"resume: blocks was {was} at the beginning and cannot become {now}; choose more, or start anew")
    if now > was:
        _require_same_origin(folder, run, settings)
    return settings


def _require_same_origin(folder: Path, run: str, settings: CampaignSettings) -> None:
    """Raises WrongCall where machine, packages or code are not those of the first blocks, as far as the journal says."""
    first = next((one for one in journal.read_all(folder) if isinstance(one, RunOpened) and one.run == run), None)
    here = {
        "machine": (provenance.fingerprint(), "measure them there"),
        "environment": (environment_digest(settings), "install its packages and set its variables"),
        "commit": (provenance.commit(), "check it out"),
    }
    for name, (now, remedy) in here.items():
        was = first.tags.get(name, "") if first else ""
        if was and was != now:
            raise WrongCall(
                f"more blocks need the {name} of the first, {was}; here it is {now or 'unknown'}: {remedy}, or start anew"
            )


def seen(folder: Path, run: str, blocks: int) -> tuple[int, ...]:
    """The looks of a campaign of a fixed number of blocks: after how many of them a report was written.

    blocks: their number until now, which its last report was about if there was one since the last look.
    """
    told = [one.values for one in journal.read_all(folder) if isinstance(one, Tags) and one.run == run]
    looks = looks_so_far(folder, run)
    reported, looked = (
        max((at for at, values in enumerate(told) if name in values), default=-1) for name in ("verdict", "looks")
    )
    return tuple(sorted({*looks, blocks})) if reported > looked else looks


def advice(campaign: Campaign, blocks: int, _stratum: str = "") -> Advice | None:
    """How so many more blocks are measured: by this campaign or, where its looks have spent the error rate, by a new one."""
    settings, study, root = campaign.settings, campaign.setup.study, campaign.runner.folder.parent
    spent = settings.until_settled and campaign.looks[-1:] == (settings.max_blocks,)
    if not spent:
        return _extended(campaign.runner.run_id, blocks, root) if blocks <= MAX_BLOCKS else None
    most = settings.max_blocks + blocks
    if most <= MAX_BLOCKS and campaign.plan == plan_.of_study(campaign.setup.module, settings):
        return Advice(
            f"A new campaign of at most {most:,} blocks, since the looks at this one have spent the error rate",
            (study, *_given({**settings_.as_text(settings), "max_blocks": str(most)}, study)),
        )
    return None


def _extended(run_id: str, blocks: int, root: Path) -> Advice:
    return Advice(
        f"{blocks:,} more block{'s' * (blocks > 1)}", ("extend", run_id, f"--blocks={blocks}"), tuple(journal_option(root))
    )


def advice_of_ended(campaigns: Mapping[str, str], root: Path, blocks: int, stratum: str) -> Advice | None:
    """How so many more blocks are measured by one of several campaigns that have ended: that of the stratum.

    campaigns: run id → what it is called in the report. None where it is not known which, or where `extend` would refuse: its
    journal is not here, its looks have spent the error rate, or machine, packages or code are others by now.
    """
    name = next((part.partition("=")[2] for part in stratum.split(", ") if part.startswith("campaign=")), "")
    meant = [one for one, called in campaigns.items() if called == name] or [one for one in campaigns if one.startswith(name)]
    if len(meant) != 1 or not (root / meant[0]).is_dir():
        return None
    try:
        found = asked(meant[0], blocks, CampaignSettings.budget, root)
        folder, kept = _find(meant[0], root)
        settings = settings_.from_values(studies.load(found.study).settings, kept["settings"])
        lengths: dict[str, Any] = {name: int(text) for name, text in found.given.items() if name in ("blocks", "max_blocks")}
        allowed(replace(settings, **lengths), kept["settings"], folder, kept["run"])
    except WrongCall:
        return None
    return _extended(meant[0], blocks, root)


def _given(wanted: Mapping[str, str], study: str) -> list[str]:
    """The options that make these settings, where the preset does not."""
    module = studies.load(study)
    preset = {"preset": wanted["preset"]}
    otherwise = settings_.as_text(settings_.parse(module.settings, module.presets, preset))
    names = {field.name for field in settings_.for_users(module.settings)} - {"settings", "resume"}
    differ = {name: text for name, text in wanted.items() if text != otherwise[name] and name in names}
    return [f"--{name}={text}" for name, text in {**preset, **differ}.items()]


__all__ = ["Extension", "advice", "advice_of_ended", "allowed", "asked", "seen"]
