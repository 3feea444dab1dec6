"""How a campaign ends: its finished runs read back, judged, and told in a report, a description and the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from experiments.campaign import Campaign
from experiments.comparison import compare, report, words
from experiments.comparison.findings import Comparison
from experiments.comparison.query import table
from tracking import journal
from tracking.errors import WrongCall
from tracking.records import Kind, Metrics, Outcome, RunClosed, RunOpened, StoredRun, Tags
from tracking.store import Unreachable, note


@dataclass(frozen=True)
class Conclusion:
    """What a campaign found, in order of telling. `comparison` and `report` are None where there is nothing to compare.

    `delivered`: whether the tracking server has all of it.
    """

    comparison: Comparison | None
    sentences: list[str]
    report: Path | None
    delivered: bool

    @property
    def has_verdict(self) -> bool:
        return self.comparison is not None and self.comparison.has_verdict


def conclude(campaign: Campaign, study: ModuleType, *, all_ok: bool) -> Conclusion:
    """Compares, writes the report into the journal and the campaign's run, describes that run, and closes it."""
    comparison, found, path = _compared(campaign, study)
    tags = {"verdict": " ".join(found)[:1_000], **note(_description(study.TITLE, campaign, found))}
    outcome, reason = (Outcome.OK, "") if all_ok else (Outcome.FAILED, "some cells failed; resume runs them again")
    return Conclusion(comparison, found, path, campaign.close(outcome, reason, tags))


def _compared(campaign: Campaign, study: ModuleType) -> tuple[Comparison | None, list[str], Path | None]:
    settings = campaign.settings
    online = campaign.deliver()
    runs = campaign.store.children(campaign.run_id, campaign.experiment) if online else from_journal(campaign.folder)
    frame = table(list(runs))
    try:
        comparison = compare(frame, baseline=settings.frameworks[0], outcomes=study.OUTCOMES, margin=settings.margin)
    except WrongCall as error:  # only one framework was asked for, or only one of them ended well
        return None, [f"No verdict: {error}."], None
    found = words.sentences(comparison)
    try:
        path = report.write(
            comparison,
            campaign.folder / "report",
            title=f"{study.TITLE} · {settings.preset}",
            runs=frame,
            published=study.PUBLISHED,
            published_source=study.SOURCE,
        )
    except OSError as error:
        return (
            comparison,
            [*found, f"No report: {error.strerror}: {campaign.folder}; write it later with resume={campaign.run_id}."],
            None,
        )
    campaign.keep_file(path.parent)
    return comparison, found, path


def from_journal(folder: Path) -> Iterable[StoredRun]:
    """The runs below the campaign as its journal holds them, for when the server is away."""
    opened: dict[str, RunOpened] = {}
    closed: dict[str, RunClosed] = {}
    tags: dict[str, dict[str, str]] = {}
    metrics: dict[str, dict[str, tuple[int, float]]] = {}
    for record in journal.read_all(folder):
        if isinstance(record, RunOpened):
            opened[record.run], tags[record.run], metrics[record.run] = record, dict(record.tags), {}
        elif isinstance(record, Tags):
            tags[record.run] |= record.values
        elif isinstance(record, RunClosed):
            closed[record.run] = record
        elif isinstance(record, Metrics):
            latest = metrics[record.run]
            for point in record.points:
                if point.key not in latest or point.step >= latest[point.key][0]:
                    latest[point.key] = (point.step, point.value)
    for run, first in opened.items():
        if first.tags["kind"] != Kind.CAMPAIGN:
            values = {key: value for key, (_, value) in metrics[run].items()}
            yield _as_stored(first, closed.get(run), tags[run], values)


def _as_stored(first: RunOpened, end: RunClosed | None, tags: dict[str, str], metrics: dict[str, float]) -> StoredRun:
    ended = {"outcome": end.outcome, "outcome_reason": end.reason} if end else {}
    status = Outcome(end.outcome).status if end else "RUNNING"
    return StoredRun(
        first.run, first.name, status, first.time_ms, end.time_ms if end else None, first.params, metrics, {**tags, **ended}
    )


def _cells(campaign: Campaign) -> str:
    try:
        return f"[all runs of this campaign]({campaign.store.list_of(campaign.experiment, campaign.run_id)})"
    except Unreachable:
        return f"tag `campaign = {campaign.run_id}`"


def _description(title: str, campaign: Campaign, found: list[str]) -> str:
    settings, info = campaign.settings, campaign.prepared.dataset
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in info.counts.items())
    return "\n\n".join(
        [
            f"**{title}**, preset `{settings.preset}`: {', '.join(f'`{name}`' for name in settings.frameworks)} in "
            f"{settings.blocks} random blocks of fresh processes on `{campaign.device}`.",
            f"Data: `{info.name}` ({counts}).",
            "\n".join(f"- ⚠ {line}" for line in campaign.warnings),
            "### Found\n" + "\n".join(f"- {line}" for line in found),
            f"The whole report is the artifact `report.html`. Every cell is a run of its own: {_cells(campaign)}.",
        ]
    )
