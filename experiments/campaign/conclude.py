"""How a campaign ends: its finished runs read back, judged, and told in a report, a description and the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from experiments import studies
from experiments.campaign import executors, extending, finished, repeats
from experiments.campaign.campaign import Campaign
from experiments.campaign.looking import Looking
from experiments.campaign.opening import announce
from experiments.campaign.runner import Runner
from experiments.comparison.judgement import ComparisonResult, ComparisonSpec, ReportOptions, answer
from experiments.comparison.report import rendering
from experiments.comparison.runs import raw
from experiments.comparison.runs.query import table
from experiments.config import settings as settings_
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import Interrupted
from experiments.contract import Progress, Study
from experiments.planning.length import is_rate
from experiments.planning.plan import Plan
from tracking.errors import WrongCall
from tracking.records import RunOutcome
from tracking.store import Unreachable, note


@dataclass(frozen=True)
class Conclusion:
    """What a campaign found. `answer` is None where there is nothing to compare; `sentences` say so then.

    `delivered`: whether the tracking server has all of it. `all_ok`: whether every cell ended well.
    """

    answer: ComparisonResult | None
    sentences: list[str]
    delivered: bool
    all_ok: bool

    @property
    def has_verdict(self) -> bool:
        return self.answer is not None and self.answer.comparison.has_verdict


def run(campaign: Campaign, progress: Progress, last_block: int = 0) -> Conclusion:
    """Every cell, then the report. Whatever happens, the campaign's run ends with its reason. Raises Interrupted.

    last_block: of an extension, see `Looking`.
    """
    runner = campaign.runner
    try:
        asked = question(campaign.settings, campaign.plan, campaign.setup.module)
        looking = Looking(campaign, asked, last_block)
        find_odd_block = partial(repeats.find_odd_block, runner.folder, runner.run, asked)
        all_ok = campaign.run(looking, executors.of(campaign), find_odd_block)
        return conclude(campaign, progress, all_ok=all_ok, stopped=looking.stopped)
    except Interrupted as error:
        runner.close(RunOutcome.INTERRUPTED, str(error))
        raise
    except KeyboardInterrupt:
        runner.close(RunOutcome.INTERRUPTED, "stopped while the report was written")
        raise runner.interrupted(" while the report was written") from None
    except Exception as error:
        runner.close(RunOutcome.FAILED, f"{type(error).__name__}: {error}")
        raise


def conclude(campaign: Campaign, progress: Progress, *, all_ok: bool, stopped: str) -> Conclusion:
    """Compares, writes the report into the journal and the campaign's run, describes that run, and closes it.

    stopped: why there are no more blocks, where their number was not fixed; else empty.
    """
    runner = campaign.runner
    try:
        found = _answer(campaign, progress)
        sentences = found.sentences
        runner.keep_metrics({**found.extra.metrics, **found.card.figures})
        if found.report is None:
            sentences = [*sentences, f"{found.trouble}; resume writes it later."]
        else:
            runner.keep_file(found.report.parent)
    except WrongCall as error:  # only one framework was asked for, or only one of them ended well
        found, sentences = None, [f"No verdict: {error}."]
    sentences = [*sentences, *filter(None, [stopped])]
    answered = found.card.told if found else sentences[0]
    tags = {"answer": answered[:1_000], "verdict": " ".join(sentences)[:1_000], **note(_description(campaign, sentences, found))}
    outcome, reason = (RunOutcome.OK, "") if all_ok else (RunOutcome.FAILED, "some cells failed; resume runs them again")
    delivered = runner.close(outcome, reason, tags)
    if found and delivered:
        verdict = found.comparison.has_verdict
        announce(runner.store, runner.experiment, runner.run_id, campaign.plan.title, sentences, verdict=verdict)
    return Conclusion(found, sentences, delivered, all_ok)


def _answer(campaign: Campaign, progress: Progress) -> ComparisonResult:
    settings, plan, runner, study = campaign.settings, campaign.plan, campaign.runner, campaign.setup.module
    online = runner.deliver()
    runs = runner.store.children(runner.run_id, runner.experiment) if online else finished.from_journal(runner.folder)
    its_own = plan.factor == study.factor  # what a study adds is about what it compares
    also = study.also if its_own else None
    options = ReportOptions(
        f"{plan.title} · {settings.preset}",
        study.published if its_own else (),
        study.source if its_own else "",
        also=(lambda comparison: also(settings, comparison, progress)) if also else None,
        figures=settings.figures,
        more_blocks=partial(extending.advice, campaign),
        link=runner.store.address if online else None,
    )
    steps = partial(raw.fetch, runner.store) if online else partial(raw.from_files, paths=finished.values(runner.folder))
    return answer(question(settings, plan, study), table(list(runs)), runner.folder / "report", options, steps)


def question(settings: CampaignSettings, plan: Plan, study: Study) -> ComparisonSpec:
    """What is asked of a campaign's runs, at every look and at the end."""
    outcomes = [one for one in studies.outcomes(study, settings) if is_rate(one.metric) or not plan.rates_only]
    asked = {one.metric for one in outcomes}
    return ComparisonSpec(
        factor=plan.factor,
        baseline=plan.baseline,
        outcomes=outcomes,
        primary=[metric for metric in studies.primary(study, settings) if metric in asked],
        margin=settings.margin,
        strata=plan.strata,
        allowed_to_differ=(*plan.allowed_to_differ, *settings_.immaterial(settings)),
        protocol=settings.protocol,
    )


def _cells(runner: Runner) -> str:
    try:
        return f"[all runs of this campaign]({runner.store.list_of(runner.experiment, runner.run_id)})"
    except Unreachable:
        return f"tag `campaign = {runner.run_id}`"


def _description(campaign: Campaign, sentences: list[str], found: ComparisonResult | None) -> str:
    """The card stands first: of a long description MLflow shows the first lines only."""
    settings, info = campaign.settings, campaign.prepared.dataset
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in info.counts.items())
    return "\n\n".join(
        [
            *([rendering.description_card(found.card)] if found else []),
            f"**{campaign.plan.title}**, preset `{settings.preset}`: {', '.join(f'`{name}`' for name in settings.frameworks)} in "
            f"{_blocks(settings)} random blocks of fresh processes on `{', '.join(campaign.devices)}`.",
            f"Data: `{info.name}` ({counts}).",
            "\n".join(f"- ⚠ {line}" for line in campaign.runner.warnings),
            "### Found\n" + "\n".join(f"- {line}" for line in sentences),
            f"The whole report is the artifact `report.html`. Every cell is a run of its own: {_cells(campaign.runner)}.",
        ]
    )


def _blocks(settings: CampaignSettings) -> str:
    return f"{settings.blocks} to {settings.max_blocks}" if settings.until_settled else str(settings.blocks)
