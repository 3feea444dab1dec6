"""How a campaign ends: its finished runs read back, judged, and told in a report, a description and the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from experiments import studies
from experiments.campaign.campaign import Campaign
from experiments.campaign.opening import announce
from experiments.campaign.runner import Runner
from experiments.cell.contract import Progress
from experiments.comparison.judgement import ComparisonResult, ComparisonSpec, ReportOptions, answer
from experiments.comparison.runs import raw
from experiments.comparison.runs.query import table
from experiments.config import settings as settings_
from experiments.config.stopping import Interrupted
from experiments.planning.length import is_rate
from tracking import journal
from tracking.errors import WrongCall
from tracking.records import Artifact, Metrics, RunClosed, RunKind, RunOpened, RunOutcome, StoredRun, Tags
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


def run(campaign: Campaign, progress: Progress) -> Conclusion:
    """Every cell, then the report. Whatever happens, the campaign's run ends with its reason. Raises Interrupted."""
    runner = campaign.runner
    try:
        return conclude(campaign, progress, all_ok=campaign.run())
    except Interrupted as error:
        runner.close(RunOutcome.INTERRUPTED, str(error))
        raise
    except KeyboardInterrupt:
        runner.close(RunOutcome.INTERRUPTED, "stopped while the report was written")
        raise runner.interrupted(" while the report was written") from None
    except Exception as error:
        runner.close(RunOutcome.FAILED, f"{type(error).__name__}: {error}")
        raise


def conclude(campaign: Campaign, progress: Progress, *, all_ok: bool) -> Conclusion:
    """Compares, writes the report into the journal and the campaign's run, describes that run, and closes it."""
    runner = campaign.runner
    try:
        found = _answer(campaign, progress)
        sentences = found.sentences
        runner.keep_metrics(found.extra.metrics)
        if found.report is None:
            sentences = [*sentences, f"{found.trouble}; resume writes it later."]
        else:
            runner.keep_file(found.report.parent)
    except WrongCall as error:  # only one framework was asked for, or only one of them ended well
        found, sentences = None, [f"No verdict: {error}."]
    tags = {"verdict": " ".join(sentences)[:1_000], **note(_description(campaign, sentences))}
    outcome, reason = (RunOutcome.OK, "") if all_ok else (RunOutcome.FAILED, "some cells failed; resume runs them again")
    delivered = runner.close(outcome, reason, tags)
    if found and delivered:
        announce(runner.store, runner.experiment, runner.run_id, campaign.plan.title, sentences)
    return Conclusion(found, sentences, delivered, all_ok)


def _answer(campaign: Campaign, progress: Progress) -> ComparisonResult:
    settings, plan, runner, study = campaign.settings, campaign.plan, campaign.runner, campaign.setup.module
    online = runner.deliver()
    runs = runner.store.children(runner.run_id, runner.experiment) if online else from_journal(runner.folder)
    outcomes = [one for one in studies.outcomes(study, settings) if is_rate(one.metric) or not plan.rates_only]
    asked = {one.metric for one in outcomes}
    spec = ComparisonSpec(
        factor=plan.factor,
        baseline=plan.baseline,
        outcomes=outcomes,
        primary=[metric for metric in studies.primary(study, settings) if metric in asked],
        margin=settings.margin,
        strata=plan.strata,
        allowed_to_differ=(*plan.allowed_to_differ, *settings_.immaterial(settings)),
        protocol=settings.protocol,
    )
    also = getattr(study, "also", None)
    options = ReportOptions(
        f"{plan.title} · {settings.preset}",
        study.PUBLISHED,
        study.SOURCE,
        also=(lambda comparison: also(settings, comparison, progress)) if also else None,
    )
    steps = partial(raw.fetch, runner.store) if online else partial(raw.from_files, paths=_values(runner.folder))
    return answer(spec, table(list(runs)), runner.folder / "report", options, steps)


def _values(folder: Path) -> dict[str, Path]:
    """The steps of every run in the journal's own folder."""
    files = (record for record in journal.read_all(folder) if isinstance(record, Artifact))
    return {one.run: folder / one.path for one in files if one.path.endswith(f"/{raw.VALUES}")}


def from_journal(folder: Path) -> Iterable[StoredRun]:
    """The runs below the campaign as its journal holds them, for when the server is away."""
    opened: dict[str, RunOpened] = {}
    closed: dict[str, RunClosed] = {}
    tags: dict[str, dict[str, str]] = {}
    metrics: dict[str, dict[str, tuple[int, float]]] = {}
    for record in journal.read_all(folder):
        if isinstance(record, RunOpened):
            opened[record.run] = record
            tags[record.run], metrics[record.run] = {**record.tags, **tags.get(record.run, {})}, metrics.get(record.run, {})
        elif isinstance(record, Tags):
            tags.setdefault(record.run, {}).update(record.values)
        elif isinstance(record, RunClosed):
            closed[record.run] = record
        elif isinstance(record, Metrics):
            latest = metrics.setdefault(record.run, {})
            for point in record.points:
                if point.key not in latest or point.step >= latest[point.key][0]:
                    latest[point.key] = (point.step, point.value)
    for run, first in opened.items():
        if first.tags.get("kind") != RunKind.CAMPAIGN:
            values = {key: value for key, (_, value) in metrics[run].items()}
            yield _as_stored(first, closed.get(run), tags[run], values)


def _as_stored(first: RunOpened, end: RunClosed | None, tags: dict[str, str], metrics: dict[str, float]) -> StoredRun:
    ended = {"outcome": end.outcome, "outcome_reason": end.reason} if end else {}
    status = (end.status or RunOutcome(end.outcome).status) if end else "RUNNING"
    return StoredRun(
        first.run, first.name, status, first.time_ms, end.time_ms if end else None, first.params, metrics, {**tags, **ended}
    )


def _cells(runner: Runner) -> str:
    try:
        return f"[all runs of this campaign]({runner.store.list_of(runner.experiment, runner.run_id)})"
    except Unreachable:
        return f"tag `campaign = {runner.run_id}`"


def _description(campaign: Campaign, found: list[str]) -> str:
    settings, info = campaign.settings, campaign.prepared.dataset
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in info.counts.items())
    return "\n\n".join(
        [
            f"**{campaign.plan.title}**, preset `{settings.preset}`: {', '.join(f'`{name}`' for name in settings.frameworks)} in "
            f"{settings.blocks} random blocks of fresh processes on `{', '.join(campaign.devices)}`.",
            f"Data: `{info.name}` ({counts}).",
            "\n".join(f"- ⚠ {line}" for line in campaign.runner.warnings),
            "### Found\n" + "\n".join(f"- {line}" for line in found),
            f"The whole report is the artifact `report.html`. Every cell is a run of its own: {_cells(campaign.runner)}.",
        ]
    )
