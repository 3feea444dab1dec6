"""Pipeline of a campaign: prepare, open, measure, judge, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from experiments import workloads
from experiments.comparison.judgement import ComparisonResult, ReportOptions, answer
from experiments.comparison.report import rendering, wording
from experiments.comparison.report.writing import VERDICTS
from experiments.comparison.runs import raw
from experiments.comparison.runs.query import table
from experiments.comparison.verdicts import conditions
from experiments.comparison.verdicts.conditions import Condition
from experiments.config.console import Display
from experiments.config.settings import (
    CampaignSettings,
    ModelSettings,
    names_not_affecting_measurement,
)
from experiments.config.stopping import Interrupted
from experiments.planning.design import Cell
from experiments.run import (
    cell_run,
    machine_limits,
    mlflow_run,
    opening,
    preparation,
    registration,
    resume,
    rules,
)
from experiments.run.backends import Backend, selection
from experiments.run.campaign import Campaign
from experiments.run.journal_runs import JournalRuns
from experiments.run.plan import Plan
from experiments.run.prepared import PreparedCampaign
from experiments.run.rules import StoppingRule
from tracking import journal, links
from tracking.errors import ErrorCode, EvenhandError, UsageError
from tracking.journal import Journal
from tracking.links import table_tag
from tracking.reader import Unreachable
from tracking.records import RunKind, RunOutcome
from tracking.store import note

# Settings that a campaign's name shows though they do not affect a cell.
NAMING = frozenset({"frameworks", "blocks", "until", "vary", "levels", "aa"})


@dataclass(frozen=True)
class Conclusion:
    """Result of a campaign.

    Attributes:
        campaign: Whose result it is.
        answer: None if there is nothing to compare; `sentences` then state the reason.
        delivered: True if the tracking server has all of it.
        all_ok: True if every cell succeeded.
        conditions: Verdicts by which the call fails.
    """

    campaign: Campaign
    answer: ComparisonResult | None
    sentences: list[str]
    delivered: bool
    all_ok: bool
    conditions: tuple[Condition, ...] = ()

    @property
    def has_verdict(self) -> bool:
        return self.answer is not None and self.answer.comparison.has_verdict


def run(
    study: str, settings: CampaignSettings, display: Display, options: Mapping[str, str]
) -> Conclusion:
    """Run a campaign, new or resumed: prepare, open, measure, judge, report.

    Args:
        study: Name of the experiment.
        settings: As the user set them.
        display: Shows the progress.
        options: Settings of this call as text, of which some may change a resumed campaign.

    Raises:
        UsageError: For what is wrong, before the first cell.
        Interrupted: If a signal came.
    """
    if settings.resume:
        return finish(reopen(study, settings, display, options))
    return finish(open_new(study, settings, display))


def open_new(
    study: str,
    settings: CampaignSettings,
    display: Display,
    plan: Plan | None = None,
    parent_run: str = "",
) -> Campaign:
    """Prepare and check everything, then open the campaign's run.

    Args:
        study: Name of the experiment.
        settings: As the user set them.
        display: Shows the progress.
        plan: What is compared, where that is not the study's own design.
        parent_run: Id of the run whose work the campaign is part of.
    """
    prepared = preparation.prepare(study, settings, display, plan, is_new=plan is None)
    if warning := prepared.plan.nothing_to_compare:
        display.say(f"! {warning}", style="bold yellow")
    tags = {**prepared.plan.tags, "kind": RunKind.CAMPAIGN, **rules.rule_tags(prepared.settings)}
    description = {"plan": asdict(plan)} if plan else {}
    name = _name(prepared, plan.title if plan else "")
    records = opening.open_journal(prepared, name, tags, description, parent_run=parent_run)
    campaign = Campaign(prepared, records, display)
    opening.record_preparation(campaign.recorder, prepared)
    return campaign


def _name(prepared: PreparedCampaign, title: str) -> str:
    settings = prepared.settings
    if settings.name:
        return cell_run.PARTS.join(filter(None, [settings.name, title]))
    left_out = names_not_affecting_measurement(settings) - NAMING
    different = cell_run.distinguishing_settings(prepared.study, settings, left_out)
    title_of = prepared.module.title_of
    head = (prepared.study, title_of(settings)) if title_of else (prepared.study, settings.preset)
    parts = [" ".join(head), title, different]
    return cell_run.PARTS.join(filter(None, parts))


def reopen(
    study: str, settings: CampaignSettings, display: Display, options: Mapping[str, str]
) -> Campaign:
    """Prepare the campaign `resume` again, with the settings that it began with; reopen its run."""
    folder = resume.find(settings.resume, Path(settings.journal).resolve(), study)
    records = Journal(folder)  # locked before minutes of preparation
    try:
        description = journal.read_campaign(folder)
        began_with = resume.settings_of(description, folder, options, display.step)
        plan = Plan.from_values(description["plan"]) if "plan" in description else None
        selection.cancel(folder, description["run_id"])  # they may use what is made anew
        # before the preparation, whose idle check they would disturb
        warnings = resume.end_leftovers(study, folder)
        prepared = preparation.prepare(study, began_with, display, plan).with_data(warnings)
        resume.require_same_data(description, prepared)
        selection.gather(records, prepared)
        opening.reopen(description, records)
        resume.record_length(records, description, began_with)
    except BaseException:
        records.close()
        raise
    return Campaign(prepared, records, display)


def finish(campaign: Campaign) -> Conclusion:
    """Measure every missing cell, judge, and write the report; the run ends with its reason."""
    recorder = campaign.recorder
    try:
        rule = StoppingRule(campaign, campaign.prepared.question())
        all_ok = _measure(campaign, rule)
        return _judge_and_report(campaign, all_ok=all_ok, stopped=rule.stopped)
    except Interrupted as error:
        recorder.close(RunOutcome.INTERRUPTED, str(error))
        raise
    except KeyboardInterrupt:
        recorder.close(RunOutcome.INTERRUPTED, "stopped while the report was written")
        raise recorder.interrupted(" while the report was written") from None
    except Exception as error:
        recorder.close(RunOutcome.FAILED, f"{type(error).__name__}: {error}")
        raise


def _measure(campaign: Campaign, rule: StoppingRule) -> bool:
    recorder, schedule, data = campaign.recorder, campaign.schedule, campaign.prepared.data
    with recorder.signals():
        recorder.check_stop()
        campaign.load_previous_results()
        recorder.warn(data.warnings)
        recorder.display.expect(len(data.before) + schedule.missing())
        backend = selection.select_backend(campaign)
        results = backend.extract(data.before)
        for job, ok in zip(data.before, results, strict=True):
            if job.is_needed and job.framework == campaign.settings.frameworks[0] and not ok:
                raise EvenhandError(
                    ErrorCode.CHILD_FAILED,
                    f"{job.framework}: the feature extraction failed, which all cells need",
                )
        recorder.warn(_warnings_after_extraction(campaign.prepared))
        results = [ok for job, ok in zip(data.before, results, strict=True) if job.is_needed]
        results += _run_blocks(backend, schedule.blocks, rule)
        if odd := rules.find_odd_block(recorder.folder, recorder.run, rule.question):
            recorder.tag(**odd.tags)  # one record: from here on it is owed, after a kill too
            campaign.load_previous_results()
            again = [block for block in schedule.blocks if block[0].block == odd.number]
            results += _run_blocks(backend, again)
    return all(results)


def _run_blocks(
    backend: Backend, blocks: Sequence[Sequence[Cell]], rule: StoppingRule | None = None
) -> list[bool]:
    results = []
    with closing(backend.blocks(blocks)) as finished:
        for block in finished:
            results.append(block.ok)
            if rule and rule(block.block, ran_now=block.ran_now):
                break
    return results


def _warnings_after_extraction(prepared: PreparedCampaign) -> Sequence[str]:
    after_extraction = workloads.load(prepared.module.workload).after_extraction
    if not after_extraction:
        return ()
    lines = list[str]()
    for treatment in prepared.plan.treatments:
        settings, data = treatment.merged(prepared.settings), prepared.data_for(treatment)
        lines += after_extraction(settings, data)
    return list(dict.fromkeys(lines))


def _judge_and_report(campaign: Campaign, *, all_ok: bool, stopped: str) -> Conclusion:
    """Compare, write the report into the journal and the campaign's run, and close that run.

    Args:
        campaign: Whose cells have ended.
        all_ok: True if every cell succeeded.
        stopped: Why there are no more blocks, if their number was not fixed.
    """
    recorder = campaign.recorder
    result: ComparisonResult | None = None
    settings, runs = campaign.settings, None
    unmeasured = machine_limits.record(campaign)
    try:
        result, runs = _judge(campaign, unmeasured)
    except UsageError as error:  # a single framework was compared, or a single one succeeded
        headline = short = f"No verdict: {error}."
        sentences = [headline]
    else:
        sentences, headline, short = list(result.sentences), result.card.answer, result.card.short
        recorder.keep_metrics(result.card.figures)
        if result.report is None:
            sentences.append(f"{result.trouble}; resume writes it later.")
        else:
            recorder.keep_file(result.report.parent)
    sentences += filter(None, [stopped])
    more = result.card.without_answer(sentences) if result else sentences[1:]
    tags = {
        "answer": short,
        **({"verdict": " ".join(more)[:1_000]} if more else {}),
        **_description(campaign, sentences, result),
        **(table_tag(VERDICTS) if result and result.report else {}),
    }
    if isinstance(settings, ModelSettings) and settings.register:
        spec, comparison = campaign.prepared.question(), result.comparison if result else None
        registration.register(campaign, settings.register, headline, spec, comparison, runs)
    outcome, reason = RunOutcome.OK, ""
    if not all_ok:
        outcome, reason = RunOutcome.FAILED, "some cells failed; resume runs them again"
    delivered = recorder.close(outcome, reason, tags)
    failing = conditions.parse(campaign.settings.fail_if)
    conclusion = Conclusion(campaign, result, sentences, delivered, all_ok, failing)
    if result and delivered:
        place = (recorder.store, recorder.experiment, recorder.run_id, campaign.prepared.plan.title)
        mlflow_run.announce(*place, sentences, verdict=conclusion.has_verdict)
    return conclusion


def _judge(campaign: Campaign, notes: Sequence[str]) -> tuple[ComparisonResult, pd.DataFrame]:
    """Compare the finished runs and write the report. Return the result and the runs' table.

    The journal has them; runs that the server has too are named and linked by their ids there.

    Args:
        campaign: Whose cells have ended.
        notes: Lines at the end of the report.
    """
    prepared, recorder = campaign.prepared, campaign.recorder
    settings, plan, study = prepared.settings, prepared.plan, prepared.module
    is_own_design = plan.factor == study.factor  # what a study adds is about its own factor
    also = study.also if is_own_design else None
    run_ids: dict[str, str] = {}
    if recorder.deliver():
        with suppress(Unreachable):
            below = f"tags.campaign = '{recorder.run_id}'"
            stored = recorder.store.runs(recorder.experiment, below)
            run_ids = {run.tags.get("origin", ""): run.run_id for run in stored}
    runs = JournalRuns(recorder.folder, {**run_ids, recorder.run: recorder.run_id})
    options = ReportOptions(
        plan.title if study.title_of else f"{plan.title} · {settings.preset}",
        study.published if is_own_design else (),
        study.source if is_own_design else "",
        also=partial(also, settings) if also else None,
        figures=settings.figures,
        notes=notes,
        more_blocks=partial(resume.advice, campaign),
        link=partial(links.address, recorder.store.uri) if run_ids else None,
    )
    judged_runs, steps = table(runs.stored()), partial(raw.fetch, runs)
    result = answer(prepared.question(), judged_runs, recorder.folder / "report", options, steps)
    return result, judged_runs


def _description(
    campaign: Campaign, sentences: list[str], result: ComparisonResult | None
) -> dict[str, str]:
    """Return the description of a campaign's run. The card stands first: MLflow shows few lines."""
    prepared, recorder = campaign.prepared, campaign.recorder
    settings, info = prepared.settings, prepared.data.dataset
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in info.counts.items())
    blocks = wording.blocks(settings.blocks)
    if settings.until_settled:
        blocks = f"{settings.blocks} to {wording.blocks(settings.max_blocks)}"
    compared = [each.name for each in prepared.plan.treatments if not each.control]
    frameworks = ", ".join(f"`{name}`" for name in settings.frameworks or compared)
    cells = f"tag `campaign = {recorder.run_id}`"
    with suppress(Unreachable):
        cells = f"[here]({links.list_of(recorder.store, recorder.experiment, recorder.run_id)})"
    parts = [
        rendering.render("card.md.j2", card=result.card) if result else "",
        f"**{prepared.plan.title}**, preset `{settings.preset}`: {frameworks} in "
        f"{blocks} on `{', '.join(campaign.devices)}`"
        f"{f'; data `{info.name}` ({counts})' if info.name else ''}.",
        "" if result else "\n".join(f"- ⚠ {line}" for line in recorder.warnings),
        "### Result\n" + "\n".join(f"- {line}" for line in sentences),
        f"The whole report is the artifact `report.html`. The runs of all cells: {cells}.",
    ]
    return note("\n\n".join(filter(None, parts)))
