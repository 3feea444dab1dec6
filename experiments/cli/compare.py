"""Comparison of finished runs of a tracking server, logged with its report as a separate run."""

from __future__ import annotations

import importlib
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import studies
from experiments.cli.commands.compare import Compare
from experiments.config import settings as settings_
from experiments.config import shell
from experiments.run.mlflow_run import ABOUT_COMPARISONS, announce, keep
from tracking import accounts, clock, provenance
from tracking.errors import EvenhandError, UsageError
from tracking.records import (
    Artifact,
    Metrics,
    Point,
    Record,
    RunClosed,
    RunKind,
    RunOpened,
    RunOutcome,
    StoredRun,
    Tags,
)
from tracking.store import Rejected, Store, Unreachable, note, source

if TYPE_CHECKING:
    from experiments.comparison.judgement import ComparisonResult
    from experiments.comparison.report.sections import Section
    from experiments.comparison.runs.sets import Choice, Kind

# Kinds of campaigns whose commands are printed.
MAX_KINDS = 5
TEXT_CHARACTERS = 1_000
_RUN_ID = re.compile(r"[0-9a-f]{32}")
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Selection:
    """Experiments by name, and MLflow's filters of their runs, any of which may match.

    Attributes:
        campaigns: Campaigns that were named by their run ids.
    """

    experiments: tuple[str, ...]
    conditions: tuple[str, ...]
    campaigns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compared:
    """Result of a comparison.

    Attributes:
        page: Address of its run in the UI.
        trouble: Reason for which the server does not have it.
        notes: Lines about runs that it does not rest on.
    """

    answer: ComparisonResult
    page: str
    trouble: str = ""
    notes: tuple[str, ...] = ()


def compare(settings: Compare, progress: Progress) -> Compared:
    """Compare runs, and log the result.

    Raises:
        UsageError: The call or the selection cannot be compared.
        Unreachable: The server does not answer.
    """
    began_ms = clock.now_ms()
    store = Store(to_read=True)
    store.check()
    selection = select(store, settings)
    with ThreadPoolExecutor(1) as background:
        # two seconds of imports, while the server looks for runs
        imports = background.submit(_import_tools)
        runs = read(store, selection, progress)
        imports.result()
    runs, notes = _without_running(store, selection, runs)
    answer, notes = _judge(settings, store, selection, runs, notes, progress)
    if answer.report is None:
        raise EvenhandError(f"{answer.trouble}; choose another folder (output=DIR)")
    try:
        page = _log(store, settings, selection, answer, began_ms)
    except (Unreachable, Rejected) as error:
        return Compared(answer, "", str(error), tuple(notes))
    return Compared(answer, page, notes=tuple(notes))


def _import_tools() -> None:
    for name in ("comparison.judgement", "comparison.analyses.steadiness"):
        importlib.import_module(f"experiments.{name}")


def select(store: Store, settings: Compare) -> Selection:
    """Return the experiments and filters of names or run ids. Raises UsageError for unknown ones."""
    campaigns = tuple(name for name in settings.experiment if _RUN_ID.fullmatch(name))
    names = list(settings.experiment)
    conditions: tuple[str, ...] = (settings.filter,)
    if campaigns:
        for run_id in campaigns:
            if store.run(run_id) is None:
                right = "give a campaign's run id, or experiments by name"
                raise UsageError(f"no run {run_id} on {store.uri}; {right}")
        if len(campaigns) < len(names):
            right = "give one kind, and narrow names down with filter"
            raise UsageError(f"experiment: names and campaigns' run ids do not mix; {right}")
        names = [store.experiment_name(run_id) for run_id in campaigns]
        narrowed = f" and {settings.filter}" if settings.filter else ""
        conditions = tuple(f"tags.campaign = '{run_id}'{narrowed}" for run_id in campaigns)
    store.experiment_ids(names)
    return Selection(tuple(dict.fromkeys(names)), conditions, campaigns)


def read(store: Store, selection: Selection, progress: Progress) -> list[StoredRun]:
    """Return the selected runs. Raises UsageError if a filter does not parse or matches nothing."""
    runs: list[StoredRun] = []
    progress("runs", 0, None)
    for condition in selection.conditions:
        before = len(runs)

        def report(done: int, total: int | None, before: int = before) -> None:
            progress("runs", before + done, total)

        try:
            runs.extend(store.runs(selection.experiments, condition, progress=report))
        except Rejected as error:
            example = "tags.team = 'vision' and params.batch_size = '32'"
            raise UsageError(
                f"filter {condition}: {error}; write it in MLflow's language: {example}"
            ) from None
        if len(runs) == before:
            where = f"{', '.join(selection.experiments)} on {store.uri}"
            reason = f"matches {condition}" if condition else "is there at all"
            raise UsageError(f"no run in {where} {reason}; nothing to compare")
    return runs


def _without_running(
    store: Store, selection: Selection, runs: Sequence[StoredRun]
) -> tuple[list[StoredRun], list[str]]:
    """Return the runs without those of running campaigns, which only their run ids select."""
    running = {run.run_id: run for run in store.at_work(selection.experiments)}
    affected = {run.tags["campaign"] for run in runs if run.tags.get("campaign") in running}
    if not affected:
        return list(runs), []
    names = ", ".join(f"{running[run_id].name} ({run_id})" for run_id in sorted(affected))
    if selection.campaigns:
        line = f"Still running: {names}. Only the cells that have ended are compared."
        return list(runs), [line]
    rest = [run for run in runs if run.tags.get("campaign") not in affected]
    again = shell.command("compare", "--experiment", ",".join(sorted(affected)))
    if not any(run.tags.get("kind") == RunKind.CELL for run in rest):
        raise UsageError(
            f"nothing but campaigns that are still running: {names}; "
            f"what they have measured so far: {again}"
        )
    line = f"Left out, since still running: {names}. What they have measured so far: {again}"
    return rest, [line]


def _judge(
    settings: Compare,
    store: Store,
    selection: Selection,
    runs: Sequence[StoredRun],
    notes: Sequence[str],
    progress: Progress,
) -> tuple[ComparisonResult, list[str]]:
    """Return the answer, and the notes about runs that it does not rest on."""
    from experiments.comparison.judgement import ComparisonSpec, ReportOptions, answer
    from experiments.comparison.runs import names, raw, sets
    from experiments.comparison.runs.query import table
    from experiments.contract import ReportAddition

    spec = ComparisonSpec(
        factor=settings.factor,
        outcomes=settings.outcomes or None,
        primary=settings.primary,
        margin=settings.margin,
        strata=settings.strata,
        allowed_to_differ=studies.immaterial(),
        all_pairs=settings.all_pairs,
        protocol=settings.protocol,
    )
    choice = sets.Choice(table(runs))
    if not selection.campaigns:
        choice = sets.newest(
            choice.table,
            factor=spec.factor,
            strata=spec.strata,
            allowed_to_differ=spec.allowed_to_differ,
        )
    notes = [*notes, *_other_kinds(settings, choice)]
    frame = choice.table
    if "campaign" in frame.columns and frame["campaign"].nunique() > 1:
        parents = store.runs(selection.experiments, f"tags.kind = '{RunKind.CAMPAIGN}'")
        frame = names.added(frame, {run.run_id: run.name for run in parents})
    campaigns = names.in_table(frame)
    spec = replace(spec, baseline=campaigns.get(settings.baseline, settings.baseline) or None)
    options = ReportOptions(
        f"Comparison: {_title(settings)}",
        figures=settings.figures,
        notes=tuple(notes),
        also=lambda _: ReportAddition([], sections=_campaign_section(campaigns, store.address)),
        link=store.address,
    )
    folder = Path(settings.output).resolve() / uuid.uuid4().hex
    steps = partial(raw.fetch, store, progress=partial(progress, "steps of the runs shown"))
    return answer(spec, frame, folder, options, steps), notes


def _campaign_section(names: Mapping[str, str], link: Callable[[str], str]) -> list[Section]:
    """Return the table of the campaigns' runs, if there are several."""
    from experiments.comparison.report.sections import Cell, Section

    if len(names) < 2:
        return []
    rows = [
        (name, Cell(run_id, link=link(run_id)))
        for run_id, name in sorted(names.items(), key=lambda item: item[1])
    ]
    return [Section("Campaigns", "What stands for which run in MLflow.", ("campaign", "run"), rows)]


def _other_kinds(settings: Compare, choice: Choice) -> list[str]:
    """Return lines that name the compared kind of campaigns, and commands for the others."""
    if choice.kind is None:
        return []
    lines = [
        f"Compared: the newest {_described(choice.kind)}. Campaigns with other settings "
        "are not pooled with it; each can be compared:"
    ]
    defaults = settings_.as_text(Compare())
    options = {
        name: text for name, text in settings_.as_text(settings).items() if text != defaults[name]
    }
    for kind in choice.others[:MAX_KINDS]:
        options["experiment"] = ",".join(kind.campaigns)
        words = [word for name, text in options.items() for word in (f"--{name}", text)]
        lines.append(f"  {_described(kind)}: {shell.command('compare', *words)}")
    more = len(choice.others) - MAX_KINDS
    return [*lines, f"  and {more} more kinds; narrow them down with filter"] if more > 0 else lines


def _described(kind: Kind) -> str:
    count = len(kind.campaigns)
    campaigns = "campaign" if count == 1 else f"{count} campaigns"
    return f"{campaigns} ({kind.differs}; {_local_time(kind.newest_ms)})"


def _local_time(time_ms: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(time_ms / 1_000))


def _title(settings: Compare) -> str:
    factor = settings.factor.removeprefix("tags.").removeprefix("params.")
    return f"{', '.join(settings.experiment)} by {factor}"


def _log(
    store: Store, settings: Compare, selection: Selection, answer: ComparisonResult, began_ms: int
) -> str:
    """Log the comparison as a run with its report. Return the run's page."""
    from experiments.comparison.report import rendering

    assert answer.report is not None
    origin = answer.report.parent.name
    name = f"comparison · {_title(settings)} · {_local_time(began_ms)}"
    account = accounts.current(store)
    team = accounts.team_of(account, settings.team)
    tags = {"kind": RunKind.COMPARISON, "machine": provenance.fingerprint()}
    tags |= {"team": team} if team else {}
    tags |= source("compare", provenance.commit()) | accounts.tags(account)
    params = {
        name: text
        for name, text in settings_.as_text(settings).items()
        if text and name not in ("output", "format")
    }
    place = accounts.place(account, team, accounts.COMPARISONS)
    lines = [rendering.markdown_card(answer.card), "", "### Found"]
    lines += [f"- {sentence}" for sentence in answer.sentences]
    lines += ["", "The whole report: artifact `report.html`."]
    points = tuple(Point(key, value, 0, began_ms) for key, value in answer.card.figures.items())
    verdict = {
        "answer": answer.card.headline[:TEXT_CHARACTERS],
        "verdict": " ".join(answer.sentences)[:TEXT_CHARACTERS],
    }
    records: list[Record] = [
        Artifact(origin, ".", ""),
        Metrics(origin, points),
        Tags(origin, verdict | note("\n".join(lines))),
        RunClosed(origin, clock.now_ms(), RunOutcome.OK, ""),
    ]
    opened = RunOpened(origin, began_ms, place, name, tags, params)
    page = keep(store, opened, records, answer.report.parent, "comparison")
    compared = selection.experiments[0]
    may_describe = account is None or not team or compared.startswith(f"{team}/")
    described = [compared] if may_describe and answer.comparison.has_verdict else []
    _describe(store, store.run_id(origin) or "", name, answer, described)
    return page


def _describe(
    store: Store, run_id: str, name: str, answer: ComparisonResult, compared: Sequence[str]
) -> None:
    """Link the run from the experiment of comparisons and from those that were compared."""
    experiment, verdict = store.experiment_name(run_id), answer.comparison.has_verdict
    if experiment.rpartition("/")[2] == accounts.COMPARISONS:  # not the one that a user chose
        with suppress(Rejected, Unreachable):
            store.describe_experiment(experiment, ABOUT_COMPARISONS)
    for place in dict.fromkeys([experiment, *compared]):
        announce(store, experiment, run_id, name, answer.sentences, verdict=verdict, told_in=place)


__all__ = ["Compared", "Selection", "compare", "read", "select"]
