"""A campaign from its settings to its report: prepare, check, prove, open, measure, judge, report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import studies, workloads
from experiments.comparison.judgement import ComparisonResult
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import Interrupted
from experiments.contract import Progress
from experiments.run import (
    backends,
    cell_run,
    journal_runs,
    mlflow_run,
    opening,
    preparation,
    reporting,
    resume,
    rules,
)
from experiments.run import plan as plan_
from experiments.run.campaign import Campaign
from experiments.run.plan import Plan
from experiments.run.preparation import PreparedCampaign
from experiments.run.rules import StoppingRule
from models import own as own_models
from tracking import journal
from tracking.errors import EvenhandError, WrongCall
from tracking.journal import Journal
from tracking.records import RunKind, RunOutcome, Tags


@dataclass(frozen=True)
class Conclusion:
    """Result of a campaign. `answer` is None where there is nothing to compare; `sentences` give the reason then.

    delivered: whether the tracking server has all of it. all_ok: whether every cell ended well.
    """

    answer: ComparisonResult | None
    sentences: list[str]
    delivered: bool
    all_ok: bool

    @property
    def has_verdict(self) -> bool:
        return self.answer is not None and self.answer.comparison.has_verdict


def start(
    study: str,
    settings: CampaignSettings,
    display: Display,
    plan: Plan | None = None,
    parent_run: str = "",
) -> Campaign:
    """Prepare, check and prove everything, then open the campaign's run.

    Args:
        study: Name of the experiment.
        settings: As the user gave them.
        display: Shows what is being done.
        plan: What is compared, where that is not the study's own design.
        parent_run: Id of the run whose work the campaign is part of.

    Raises:
        WrongCall: For what is wrong, before any minute of compute.
    """
    if warning := (plan or plan_.of_study(studies.load(study), settings)).nothing_to_compare:
        display.say(f"! {warning}", style="bold yellow")
    prepared = preparation.prepare(study, settings, display, plan)
    description = {"plan": plan_.to_values(plan)} if plan else {}
    tags = {**prepared.plan.tags, "kind": RunKind.CAMPAIGN, **rules.rule_tags(settings)}
    name = _name(study, settings, plan)
    records = opening.open_journal(prepared, name, tags, description, parent_run=parent_run)
    campaign = Campaign(prepared, records, display)
    opening.record_preparation(campaign.recorder, prepared)
    return campaign


def _name(study: str, settings: CampaignSettings, plan: Plan | None) -> str:
    """Return the run's name: preset, the first settings that are not the preset's, and when it began."""
    left_out = settings_.immaterial(settings) - {"frameworks", "blocks", "vary"}
    parts = [f"{study} {settings.preset}", plan.title if plan else ""]
    parts += [
        cell_run.distinguishing_settings(study, settings, left_out),
        time.strftime("%Y-%m-%d %H:%M"),
    ]
    return " · ".join(filter(None, parts))


def restart(
    study: str, wanted: str, given: Mapping[str, str], root: Path, display: Display
) -> Campaign:
    """Prepare a campaign again with the settings that it began with, and reopen its run.

    Raises:
        WrongCall: If it is not found, or other settings are given.
    """
    folder = resume.find("resume", wanted, root, study)
    description = journal.read_campaign(folder)
    records = Journal(
        folder
    )  # its lock before minutes of preparation: another process may be running
    try:
        return _restarted(study, description, given, records, display)
    except BaseException:
        records.close()
        raise


def _restarted(
    study: str,
    description: Mapping[str, Any],
    given: Mapping[str, str],
    records: Journal,
    display: Display,
) -> Campaign:
    folder, run, before = records.folder, description["run"], description["settings"]
    for path, digest in description.get("own_models", {}).values():
        if own_models.digest(own_models.add(Path(path))) != digest:
            raise WrongCall(
                f"resume: the model in {path} has changed since the campaign began; start anew"
            )
    settings = resume.same_settings(study, before, given)
    resume.require_extendable(settings, before, folder, run)
    plan = plan_.from_values(description["plan"]) if "plan" in description else None
    prepared = preparation.prepare(study, settings, display, plan)
    backends.gather(records, description["run_id"])
    opening.reopen(description, records)
    now = {name: getattr(settings, name) for name in resume.open_ended(settings)}
    if {**before, **now} != before:
        lengthened = not settings.until_settled and settings.blocks != before["blocks"]
        if lengthened and (looks := resume.reported_looks(folder, run, before["blocks"])):
            records.append(Tags(run, {"looks": journal_runs.as_text(looks)}))
        journal.write_campaign(folder, {**description, "settings": {**before, **now}})
    return Campaign(prepared, records, display)


def run(campaign: Campaign, progress: Progress, last_block: int = 0) -> Conclusion:
    """Measure every cell, judge, and write the report. Whatever happens, the campaign's run ends with its reason.

    Args:
        campaign: Started or restarted.
        progress: Shows how far the report is.
        last_block: Of an extension, see `StoppingRule`.

    Raises:
        Interrupted: If a signal came.
    """
    recorder = campaign.recorder
    try:
        rule = StoppingRule(campaign, reporting.question(campaign.prepared), last_block)
        all_ok = measure(campaign, rule)
        return judge_and_report(campaign, progress, all_ok=all_ok, stopped=rule.stopped)
    except Interrupted as error:
        recorder.close(RunOutcome.INTERRUPTED, str(error))
        raise
    except KeyboardInterrupt:
        recorder.close(RunOutcome.INTERRUPTED, "stopped while the report was written")
        raise recorder.interrupted(" while the report was written") from None
    except Exception as error:
        recorder.close(RunOutcome.FAILED, f"{type(error).__name__}: {error}")
        raise


def measure(campaign: Campaign, rule: StoppingRule) -> bool:
    """Do what comes before the blocks, then run every missing cell. Return whether all ended well."""
    recorder, schedule, data = campaign.recorder, campaign.schedule, campaign.prepared.data
    with recorder.signals():
        recorder.check_stop()
        campaign.recall()
        recorder.warn(data.warnings)
        recorder.display.expect(len(data.before) + schedule.missing())
        backend = backends.of(campaign)
        results = backend.extract(data.before)
        for job, ok in zip(data.before, results, strict=True):
            if job.framework == campaign.settings.frameworks[0] and not ok:
                raise EvenhandError(
                    "the baseline's feature extraction failed, which all cells need; the reason stands above"
                )
        recorder.warn(_warnings_after_extraction(campaign.prepared))
        with closing(backend.blocks(schedule.blocks)) as blocks:
            for block in blocks:
                results.append(block.ok)
                if rule(block.block, ran_now=block.ran_now):
                    break
        if odd := rules.find_odd_block(recorder.folder, recorder.run, rule.question):
            recorder.tag(**odd.tags)  # one record: from here on it is owed, after a kill too
            campaign.recall()
            again = [block for block in schedule.blocks if block[0].block == odd.number]
            with closing(backend.blocks(again)) as blocks:
                results += [block.ok for block in blocks]
    return all(results)


def _warnings_after_extraction(prepared: PreparedCampaign) -> Sequence[str]:
    if not (after_extraction := workloads.load(prepared.module.workload).after_extraction):
        return ()
    treatments = {
        id(prepared.data_for(treatment)): treatment for treatment in prepared.plan.treatments
    }
    warnings: dict[str, None] = {}
    for treatment in treatments.values():
        data = prepared.data_for(treatment)
        warnings |= dict.fromkeys(after_extraction(treatment.merged(prepared.settings), data))
    return tuple(warnings)


def judge_and_report(
    campaign: Campaign, progress: Progress, *, all_ok: bool, stopped: str
) -> Conclusion:
    """Compare, write the report into the journal and the campaign's run, describe that run, and close it.

    stopped: why there are no more blocks, where their number was not fixed; else empty.
    """
    recorder = campaign.recorder
    result: ComparisonResult | None = None
    try:
        judged = reporting.judge(campaign, progress)
    except WrongCall as error:  # a single framework was asked for, or a single one ended well
        sentences, answer = [f"No verdict: {error}."], f"No verdict: {error}."
    else:
        result, sentences, answer = judged, list(judged.sentences), judged.card.told
        recorder.keep_metrics({**judged.extra.metrics, **judged.card.figures})
        if judged.report is None:
            sentences.append(f"{judged.trouble}; resume writes it later.")
        else:
            recorder.keep_file(judged.report.parent)
    sentences += filter(None, [stopped])
    tags = {
        "answer": answer[:1_000],
        "verdict": " ".join(sentences)[:1_000],
        **reporting.description(campaign, sentences, result),
    }
    outcome, reason = (
        (RunOutcome.OK, "")
        if all_ok
        else (RunOutcome.FAILED, "some cells failed; resume runs them again")
    )
    delivered = recorder.close(outcome, reason, tags)
    conclusion = Conclusion(result, sentences, delivered, all_ok)
    if result and delivered:
        place = (recorder.store, recorder.experiment, recorder.run_id, campaign.prepared.plan.title)
        mlflow_run.announce(*place, sentences, verdict=conclusion.has_verdict)
    return conclusion
