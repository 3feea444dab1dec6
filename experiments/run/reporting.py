"""What is asked of a campaign's runs, how they are judged, and what its run's description is."""

from __future__ import annotations

from functools import partial

from experiments import studies
from experiments.comparison.judgement import ComparisonResult, ComparisonSpec, ReportOptions, answer
from experiments.comparison.report import rendering
from experiments.comparison.runs import raw
from experiments.comparison.runs.query import table
from experiments.config import settings as settings_
from experiments.config.settings import CampaignSettings
from experiments.contract import Progress
from experiments.planning.length import is_rate
from experiments.run import journal_runs, resume
from experiments.run.campaign import Campaign
from experiments.run.plan import Plan
from experiments.run.preparation import PreparedCampaign
from tracking.store import Unreachable, note


def question(prepared: PreparedCampaign) -> ComparisonSpec:
    """Return what is asked of a campaign's runs, at every look and at the end."""
    return question_of(prepared.study, prepared.settings, prepared.plan)


def question_of(study: str, settings: CampaignSettings, plan: Plan) -> ComparisonSpec:
    """Return what would be asked of the runs of a campaign."""
    module = studies.load(study)
    outcomes = [
        outcome
        for outcome in studies.outcomes(module, settings)
        if is_rate(outcome.metric) or not plan.rates_only
    ]
    metrics = {outcome.metric for outcome in outcomes}
    return ComparisonSpec(
        factor=plan.factor,
        baseline=plan.baseline,
        outcomes=outcomes,
        primary=[metric for metric in studies.primary(module, settings) if metric in metrics],
        margin=settings.margin,
        strata=plan.strata,
        allowed_to_differ=(*plan.allowed_to_differ, *settings_.immaterial(settings)),
        protocol=settings.protocol,
    )


def judge(campaign: Campaign, progress: Progress) -> ComparisonResult:
    """Compare the finished runs, from the server or, while it is away, from the journal; write the report."""
    prepared, recorder = campaign.prepared, campaign.recorder
    settings, plan, study = prepared.settings, prepared.plan, prepared.module
    online = recorder.deliver()
    runs = (
        recorder.store.children(recorder.run_id, recorder.experiment)
        if online
        else journal_runs.stored(recorder.folder)
    )
    is_own_design = plan.factor == study.factor  # what a study adds is about what it compares
    also = study.also if is_own_design else None
    options = ReportOptions(
        f"{plan.title} · {settings.preset}",
        study.published if is_own_design else (),
        study.source if is_own_design else "",
        also=(lambda comparison: also(settings, comparison, progress)) if also else None,
        figures=settings.figures,
        more_blocks=partial(resume.advice, campaign),
        link=recorder.store.address if online else None,
    )
    steps = (
        partial(raw.fetch, recorder.store)
        if online
        else partial(raw.from_files, paths=journal_runs.step_files(recorder.folder))
    )
    return answer(question(prepared), table(list(runs)), recorder.folder / "report", options, steps)


def description(
    campaign: Campaign, sentences: list[str], result: ComparisonResult | None
) -> dict[str, str]:
    """Return the description of a campaign's run. The card stands first: MLflow shows the first lines only."""
    prepared, recorder = campaign.prepared, campaign.recorder
    settings, info = prepared.settings, prepared.data.dataset
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in info.counts.items())
    blocks = (
        f"{settings.blocks} to {settings.max_blocks}"
        if settings.until_settled
        else str(settings.blocks)
    )
    frameworks = ", ".join(f"`{name}`" for name in settings.frameworks)
    try:
        cells = f"[all runs of this campaign]({recorder.store.list_of(recorder.experiment, recorder.run_id)})"
    except Unreachable:
        cells = f"tag `campaign = {recorder.run_id}`"
    parts = [
        *([rendering.description_card(result.card)] if result else []),
        f"**{prepared.plan.title}**, preset `{settings.preset}`: {frameworks} in "
        f"{blocks} random blocks of fresh processes on `{', '.join(campaign.devices)}`.",
        f"Data: `{info.name}` ({counts}).",
        "\n".join(f"- ⚠ {line}" for line in recorder.warnings),
        "### Found\n" + "\n".join(f"- {line}" for line in sentences),
        f"The whole report is the artifact `report.html`. Every cell is a run of its own: {cells}.",
    ]
    return note("\n\n".join(parts))
