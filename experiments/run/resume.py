"""Campaigns that are continued, from their journal, perhaps with more blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments import studies, workloads
from experiments.comparison.report.card import Advice
from experiments.config.settings import (
    CLUSTER,
    MAX_BLOCKS,
    CampaignSettings,
    from_values,
    not_logged_names,
    parse,
    to_text,
)
from experiments.contract import Progress
from experiments.run import journal_runs, preparation
from experiments.run.campaign import Campaign
from experiments.run.cell_run import environment_digest, source_folder
from experiments.run.prepared import PreparedCampaign
from experiments.run.recorder import journal_option
from models import own as own_models
from tracking import journal, plain, provenance
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Journal
from tracking.records import Tags


def settings_of(
    description: Mapping[str, Any],
    folder: Path,
    overrides: Mapping[str, str],
    progress: Progress,
) -> CampaignSettings:
    """Return a campaign's settings with those of this call that may change.

    Args:
        description: Of the campaign, as its journal has it.
        folder: Of the journal.
        overrides: Settings of this call, as text.
        progress: Shows what is made again.

    Raises:
        UsageError: If others would change, or if its runs could not be judged together.
    """
    before = description["settings"]
    for path, digest in description.get("own_models", {}).values():
        if own_models.digest(own_models.add(Path(path))) != digest:
            raise UsageError(
                ErrorCode.CHANGED,
                f"resume: the model in {path} has changed since the campaign began; start anew",
            )
    settings = same_settings(description["study"], before, overrides)
    if settings.levels:
        preparation.make_environments(settings, progress)
    require_extendable(description["study"], settings, before, folder, description["run"])
    return settings


def end_leftovers(study: str, folder: Path) -> tuple[str, ...]:
    """End what killed cells have left running, and return a warning that names it, if any.

    Args:
        study: Name of the experiment.
        folder: Of the campaign's journal, which no other process writes.
    """
    end = workloads.load(studies.load(study).workload).end_leftovers
    text = end(folder.resolve()) if end else ""
    return (f"{text}; ended before the campaign goes on",) if text else ()


def require_same_data(description: Mapping[str, Any], prepared: PreparedCampaign) -> None:
    """Raise UsageError if a campaign's data, or a race's commands, have changed since it began."""
    dataset = prepared.data.dataset
    if description.get("data", dataset.digest) != dataset.digest:
        raise UsageError(
            ErrorCode.CHANGED,
            f"resume: {dataset.name or 'commands'} changed since the campaign began; start anew",
        )


def record_length(
    records: Journal, description: Mapping[str, Any], settings: CampaignSettings
) -> None:
    """Record how long a campaign goes on from now, and the looks that it has had."""
    before, run = description["settings"], description["run"]
    now = {name: getattr(settings, name) for name in open_ended(settings)}
    if {**before, **now} == before:
        return
    if not settings.until_settled and settings.blocks != before["blocks"]:
        looks = reported_looks(records.folder, run, before["blocks"])
        if looks:
            records.append(Tags(run, {"looks": ",".join(map(str, looks))}))
    journal.write_campaign(records.folder, {**description, "settings": {**before, **now}})


def find(run_id: str, root: Path, study: str) -> Path:
    """Return the journal folder of a campaign.

    Args:
        run_id: The campaign's run id, or `last`.
        root: The folder of the journals.
        study: Of which it has to be.

    Raises:
        UsageError: If there is none.
    """
    folders = [
        folder
        for folder, description in journal.descriptions(root, run_id)
        if description["study"] == study and "joined" not in description
    ]
    for folder in reversed(folders):
        if run_id in ("last", folder.name):
            return folder
    names = ", ".join(folder.name for folder in folders[-5:]) or "none"
    raise UsageError(
        ErrorCode.NOT_FOUND,
        f"resume={plain.short(run_id)}: no such campaign of {study} in journal={root}; "
        f"have {names}",
    )


def same_settings(
    study: str, recorded: Mapping[str, Any], overrides: Mapping[str, str]
) -> CampaignSettings:
    """Return the recorded settings, except for folders, length and cluster, which may be new.

    Raises:
        UsageError: For other changes, and for a setting that is newer than the record.
    """
    module = studies.load(study)
    settings = from_values(module.settings, recorded)
    requested = parse(module.settings, module.presets, overrides)
    may_change = not_logged_names(settings) - {"name"} | open_ended(settings)
    for name in set(overrides) - may_change:
        before = getattr(settings, name)
        right = "set max_blocks" if name == "blocks" else "start anew"
        if before != getattr(requested, name):
            raise UsageError(
                ErrorCode.CHANGED,
                f"resume: {name} was {to_text(before)} at the beginning "
                f"and cannot become {overrides[name]}; {right}",
            )
    changed = set(overrides) & {"cache", "journal", "register", *open_ended(settings)}
    if overrides.get("executor") == "local":  # options of the cluster go with it
        changed |= CLUSTER
    return replace(settings, **{name: getattr(requested, name) for name in changed})


def open_ended(settings: CampaignSettings) -> set[str]:
    """Return the settings that a resumption may change: how long it goes on, and where."""
    length = {"max_blocks", "budget"} if settings.until_settled else {"blocks"}
    return length | CLUSTER


def require_extendable(
    study: str, settings: CampaignSettings, before: Mapping[str, Any], folder: Path, run: str
) -> None:
    """Raise UsageError if the requested blocks cannot be judged together with the existing ones.

    Looks have spent some of the error rate, and all blocks have to come from the same origin.

    Args:
        study: Name of the experiment.
        settings: As they would be.
        before: As they were until now.
        folder: Of the campaign's journal.
        run: The campaign's run in it.
    """
    name = "max_blocks" if settings.until_settled else "blocks"
    now, was = settings.most_blocks, before.get(name, settings.most_blocks)
    if now == was:
        return
    judged = max(journal_runs.looks(folder, run), default=0)
    is_refused = now < was
    if settings.until_settled:  # a look at the last block has spent all of the error rate
        is_refused = 0 < was <= judged or now <= judged
    if is_refused:
        raise UsageError(
            ErrorCode.CONFLICT,
            f"resume: {name} was {was}, {judged} blocks have been judged, "
            f"and it cannot become {now}; start anew",
        )
    if now > was:
        _require_same_origin(study, folder, run, settings)


def _require_same_origin(study: str, folder: Path, run: str, settings: CampaignSettings) -> None:
    """Raise UsageError where machine, packages or code are not those of the first blocks."""
    tags = journal_runs.tags(folder, run)
    origin = {
        "machine": provenance.fingerprint(),
        "environment": environment_digest(settings),
        "commit": provenance.commit(source_folder(study, settings)),
    }
    for name, now in origin.items():
        if tags.get(name, now) != now:
            raise UsageError(
                ErrorCode.CHANGED,
                f"resume: more blocks need the {name} of the first, {tags[name]}; "
                f"here it is {now or 'unknown'}",
            )


def reported_looks(folder: Path, run: str, blocks: int) -> tuple[int, ...]:
    """Return the blocks after which a campaign of a fixed number of blocks wrote a report.

    Args:
        folder: Of the campaign's journal.
        run: The campaign's run in it.
        blocks: The number until now, to which its last report belongs if it had one.
    """
    looks, tagged_at = journal_runs.looks(folder, run), journal_runs.read(folder)[run].tagged_at
    verdict, answer, looked = (
        tagged_at.get(name, journal_runs.NEVER) for name in ("verdict", "answer", "looks")
    )
    reported = max(verdict, answer)  # a report without a tag `answer` is an older one
    return tuple(sorted({*looks, blocks})) if reported > looked else looks


def advice(campaign: Campaign, blocks: int, _stratum: str = "") -> Advice | None:
    """Return the command that continues a campaign for more blocks; None if it has no more."""
    settings, recorder = campaign.settings, campaign.recorder
    finished = max(campaign.looks, default=0) if settings.until_settled else settings.blocks
    is_spent = settings.until_settled and finished == settings.max_blocks
    if is_spent or finished + blocks > MAX_BLOCKS:
        return None
    length = [f"--blocks={finished + blocks}"]
    if settings.until_settled:
        length = [f"--max_blocks={max(finished + blocks, settings.max_blocks)}"]
        length += ["--budget=none"] if settings.budget != "none" else []
    command = (campaign.prepared.study, f"--resume={recorder.run_id}", *length)
    more = f"{blocks:,} more block{'s' * (blocks > 1)}"
    return Advice(more, command, tuple(journal_option(recorder.folder.parent)))
