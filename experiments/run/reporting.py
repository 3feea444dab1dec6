"""Question about a campaign's runs, their verdict, and the description of the campaign's run."""

from __future__ import annotations

from functools import partial

from experiments import studies
from experiments.comparison.judgement import ComparisonResult, ComparisonSpec, ReportOptions, answer
from experiments.comparison.report import rendering
from experiments.comparison.runs import raw
from experiments.comparison.runs.query import table
from experiments.config import settings as settings_
from experiments.contract import Progress
from experiments.planning.length import is_rate
from experiments.run import journal_runs, resume
from experiments.run.campaign import Campaign
from experiments.run.preparation import PreparedCampaign
from tracking.store import Unreachable, note


def question(prepared: PreparedCampaign) -> ComparisonSpec:
    """Return the question about a campaign's runs, at every look and at the end."""
    module, settings, plan = prepared.module, prepared.settings, prepared.plan
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
    """Compare the finished runs and write the report.

    They come from the server or, while that is not reachable, from the journal.
    """
    prepared, recorder = campaign.prepared, campaign.recorder
    settings, plan, study = prepared.settings, prepared.plan, prepared.module
    is_own_design = plan.factor == study.factor  # what a study adds is about its own factor
    also = study.also if is_own_design else None
    link = None
    if recorder.deliver():
        runs = list(recorder.store.children(recorder.run_id, recorder.experiment))
        steps, link = partial(raw.fetch, recorder.store), recorder.store.address
    else:
        runs = list(journal_runs.stored(recorder.folder))
        steps = partial(raw.from_files, paths=journal_runs.step_files(recorder.folder))
    options = ReportOptions(
        f"{plan.title} · {settings.preset}",
        study.published if is_own_design else (),
        study.source if is_own_design else "",
        also=(lambda comparison: also(settings, comparison, progress)) if also else None,
        figures=settings.figures,
        more_blocks=partial(resume.advice, campaign),
        link=link,
    )
    return answer(question(prepared), table(runs), recorder.folder / "report", options, steps)


def description(
    campaign: Campaign, sentences: list[str], result: ComparisonResult | None
) -> dict[str, str]:
    """Return the description of a campaign's run. The card stands first: MLflow shows few lines."""
    prepared, recorder = campaign.prepared, campaign.recorder
    settings, info = prepared.settings, prepared.data.dataset
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in info.counts.items())
    blocks = str(settings.blocks)
    if settings.until_settled:
        blocks = f"{settings.blocks} to {settings.max_blocks}"
    frameworks = ", ".join(f"`{name}`" for name in settings.frameworks)
    try:
        link = recorder.store.list_of(recorder.experiment, recorder.run_id)
        cells = f"[all runs of this campaign]({link})"
    except Unreachable:
        cells = f"tag `campaign = {recorder.run_id}`"
    parts = [
        f"**{prepared.plan.title}**, preset `{settings.preset}`: {frameworks} in "
        f"{blocks} random blocks of fresh processes on `{', '.join(campaign.devices)}`.",
        f"Data: `{info.name}` ({counts}).",
        "\n".join(f"- ⚠ {line}" for line in recorder.warnings),
        "### Found\n" + "\n".join(f"- {line}" for line in sentences),
        f"The whole report is the artifact `report.html`. Every cell is a run of its own: {cells}.",
    ]
    if result:
        parts.insert(0, rendering.description_card(result.card))
    return note("\n\n".join(parts))
