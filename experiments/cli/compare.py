"""Finished runs of a tracking server, whoever made them: selected, judged, and the report logged as a run of its own."""

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
from tracking.errors import EvenhandError, WrongCall
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
    import pandas as pd

    from experiments.comparison.judgement import ComparisonResult
    from experiments.comparison.report.sections import Section
    from experiments.comparison.runs.sets import Choice, Kind

# Kinds of campaigns whose commands are printed.
MAX_KINDS = 5
_RUN_ID = re.compile(r"[0-9a-f]{32}")
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Selection:
    """Experiments by name, and what MLflow is asked to filter their runs by: whatever matches one of `conditions`.

    campaigns: those that were named by their ids.
    """

    experiments: tuple[str, ...]
    conditions: tuple[str, ...]
    campaigns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compared:
    """The answer, and the run that holds it: its page in the UI, or why the server does not have it.

    notes: which runs it does not rest on, and how they are compared.
    """

    answer: ComparisonResult
    page: str
    trouble: str = ""
    notes: tuple[str, ...] = ()


def compare(settings: Compare, progress: Progress) -> Compared:
    """Raises WrongCall for a call or a selection that cannot be compared, Unreachable if the server goes away."""
    began_ms = clock.now_ms()
    store = Store(to_read=True)
    store.check()
    selection = select(store, settings)
    with ThreadPoolExecutor(1) as beside:
        tools = beside.submit(
            _import_tools
        )  # two seconds of imports, while the server looks for runs
        found = read(store, selection, progress)
        tools.result()
    found, told = _ended(store, selection, found)
    answer, left_out = _judged(settings, store, selection, found, told, progress)
    if answer.report is None:
        raise EvenhandError(f"{answer.trouble}; choose another folder (output=DIR)")
    try:
        return Compared(
            answer, _logged(store, settings, selection, answer, began_ms), notes=left_out
        )
    except (Unreachable, Rejected) as error:
        return Compared(answer, "", str(error), left_out)


def _ended(
    store: Store, selection: Selection, found: Sequence[StoredRun]
) -> tuple[list[StoredRun], list[str]]:
    """The runs without those of campaigns at work, and what is said of these: only who names one by its id compares it."""
    at_work = {run.run_id: run for run in store.at_work(selection.experiments)}
    theirs = {run.tags["campaign"] for run in found if run.tags.get("campaign") in at_work}
    if not theirs:
        return list(found), []
    names = ", ".join(f"{at_work[run_id].name} ({run_id})" for run_id in sorted(theirs))
    if selection.campaigns:
        return list(found), [
            f"Still running: {names}. Only the cells that have ended are compared."
        ]
    left = [run for run in found if run.tags.get("campaign") not in theirs]
    again = shell.command("compare", "--experiment", ",".join(sorted(theirs)))
    if not any(run.tags.get("kind") == RunKind.CELL for run in left):
        raise WrongCall(
            f"nothing but campaigns that are still running: {names}; what they have measured so far: {again}"
        )
    return left, [
        f"Left out, since still running: {names}. What they have measured so far: {again}"
    ]


def _judged(
    settings: Compare,
    store: Store,
    selection: Selection,
    runs: Sequence[StoredRun],
    told: Sequence[str],
    progress: Progress,
) -> tuple[ComparisonResult, tuple[str, ...]]:
    """The answer, and what is said of the runs that it does not rest on."""
    from experiments.comparison.judgement import ComparisonSpec, Extra, ReportOptions, answer
    from experiments.comparison.runs import names, raw, sets
    from experiments.comparison.runs.query import table

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
    chosen = sets.Choice(table(runs))
    if not selection.campaigns:
        free = spec.allowed_to_differ
        chosen = sets.newest(
            chosen.table, factor=spec.factor, strata=spec.strata, allowed_to_differ=free
        )
    notes = (*told, *_other_kinds(settings, chosen))
    asked_of = names.added(chosen.table, _names(store, selection, chosen.table))
    campaigns = names.in_table(asked_of)
    spec = replace(spec, baseline=campaigns.get(settings.baseline, settings.baseline) or None)
    options = ReportOptions(
        f"Comparison: {_title(settings)}",
        figures=settings.figures,
        notes=notes,
        also=lambda _: Extra([], sections=_of_campaigns(campaigns, store.address)),
        link=store.address,
    )
    folder = Path(settings.output).resolve() / uuid.uuid4().hex
    steps = partial(raw.fetch, store, progress=partial(progress, "steps of the runs shown"))
    return answer(spec, asked_of, folder, options, steps), notes


def _names(store: Store, selection: Selection, runs: pd.DataFrame) -> dict[str, str]:
    """Run id → name of the campaigns, where the runs are of several."""
    if "campaign" not in runs.columns or runs["campaign"].nunique() < 2:
        return {}
    found = store.runs(selection.experiments, f"tags.kind = '{RunKind.CAMPAIGN}'")
    return {run.run_id: run.name for run in found}


def _of_campaigns(called: Mapping[str, str], link: Callable[[str], str]) -> list[Section]:
    """Which run each campaign is, where several are compared or summarised."""
    from experiments.comparison.report.sections import Cell, Section

    rows = [
        (name, Cell(run_id, link=link(run_id)))
        for run_id, name in sorted(called.items(), key=lambda one: one[1])
    ]
    return (
        [Section("Campaigns", "What stands for which run in MLflow.", ("campaign", "run"), rows)]
        if len(rows) > 1
        else []
    )


def _other_kinds(settings: Compare, chosen: Choice) -> list[str]:
    """Which campaigns were taken of several kinds, and how each of the others is compared."""
    if chosen.kind is None:
        return []
    taken = _counted(chosen.kind)
    found = [
        f"Compared: the newest {taken}. Campaigns with other settings are not pooled with it; each can be compared:"
    ]
    changed = {
        name: text
        for name, text in settings_.as_text(settings).items()
        if text != settings_.as_text(Compare())[name]
    }
    for kind in chosen.others[:MAX_KINDS]:
        words = [
            part
            for name, text in {**changed, "experiment": ",".join(kind.campaigns)}.items()
            for part in (f"--{name}", text)
        ]
        found.append(f"  {_counted(kind)}: {shell.command('compare', *words)}")
    more = len(chosen.others) - MAX_KINDS
    return [*found, f"  and {more} more kinds; narrow them down with filter"] if more > 0 else found


def _counted(kind: Kind) -> str:
    count = len(kind.campaigns)
    return f"{'campaign' if count == 1 else f'{count} campaigns'} ({kind.differs}; {_when(kind.newest_ms)})"


def _when(time_ms: float) -> str:
    """On this machine's clock, to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(time_ms / 1_000))


def _title(settings: Compare) -> str:
    return f"{', '.join(settings.experiment)} by {settings.factor.removeprefix('tags.').removeprefix('params.')}"


def _import_tools() -> None:
    comparison = ("judgement", "analyses.steadiness")
    for name in (*(f"comparison.{room}" for room in comparison), "run.resume"):
        importlib.import_module(f"experiments.{name}")


def select(store: Store, settings: Compare) -> Selection:
    """The experiments and the filter behind the names and run ids that were given. Raises WrongCall for one that is not there."""
    names: list[str] = []
    campaigns: list[str] = []
    for wanted in settings.experiment:
        if not _RUN_ID.fullmatch(wanted):
            names.append(wanted)
            continue
        if store.run(wanted) is None:
            raise WrongCall(
                f"no run {wanted} on {store.uri}; give a campaign's run id, or experiments by name"
            )
        campaigns.append(wanted)
        names.append(store.experiment_name(wanted))
    if campaigns and len(campaigns) < len(settings.experiment):
        raise WrongCall(
            "experiment: names and campaigns' run ids do not mix; give one kind, and narrow names down with filter"
        )
    store.experiment_ids(names)
    own = [settings.filter] if settings.filter else []
    conditions = tuple(
        " and ".join([f"tags.campaign = '{run_id}'", *own]) for run_id in campaigns
    ) or ("".join(own),)
    return Selection(tuple(dict.fromkeys(names)), conditions, tuple(campaigns))


def read(store: Store, selection: Selection, progress: Progress) -> list[StoredRun]:
    """All selected runs. Raises WrongCall if the filter does not parse or nothing matches."""
    found: list[StoredRun] = []
    progress("runs", 0, None)
    for condition in selection.conditions:
        before = len(found)
        told = partial(_tell, progress, before)
        try:
            found.extend(store.runs(selection.experiments, condition, progress=told))
        except Rejected as error:
            example = "tags.team = 'vision' and params.batch_size = '32'"
            raise WrongCall(
                f"filter {condition}: {error}; write it in MLflow's language: {example}"
            ) from None
        if len(found) == before:
            which = f" matches {condition}" if condition else " is there at all"
            raise WrongCall(
                f"no run in {', '.join(selection.experiments)} on {store.uri}{which}; nothing to compare"
            )
    return found


def _tell(progress: Progress, before: int, done: int, total: int | None) -> None:
    progress("runs", before + done, total)


def _logged(
    store: Store, settings: Compare, selection: Selection, found: ComparisonResult, began_ms: int
) -> str:
    """The comparison as a run of the experiment of comparisons, with its report; returns its page."""
    from experiments.comparison.report import rendering

    assert found.report is not None
    origin, title = found.report.parent.name, _title(settings)
    account = accounts.current(store)
    team = accounts.team_of(account, settings.team)
    tags = {
        "kind": RunKind.COMPARISON,
        "machine": provenance.fingerprint(),
        **({"team": team} if team else {}),
        **source("compare", provenance.commit()),
        **accounts.tags(account),
    }
    params = {
        name: text
        for name, text in settings_.as_text(settings).items()
        if text and name not in ("output", "format")
    }
    place = accounts.place(account, team, accounts.COMPARISONS)
    wanted = RunOpened(
        origin, began_ms, place, f"comparison · {title} · {_when(began_ms)}", tags, params
    )
    card = rendering.description_card(found.card)
    text = "\n".join(
        [
            card,
            "",
            "### Found",
            *(f"- {line}" for line in found.sentences),
            "",
            "The whole report: artifact `report.html`.",
        ]
    )
    records: list[Record] = [
        Artifact(origin, ".", ""),
        Metrics(
            origin,
            tuple(Point(key, value, 0, began_ms) for key, value in found.card.figures.items()),
        ),
        Tags(
            origin,
            {
                "answer": found.card.told[:1_000],
                "verdict": " ".join(found.sentences)[:1_000],
                **note(text),
            },
        ),
        RunClosed(origin, clock.now_ms(), RunOutcome.OK, ""),
    ]
    page = keep(store, wanted, records, found.report.parent, "comparison")
    first = selection.experiments[0]
    own = account is None or not team or first.startswith(f"{team}/")
    _told(store, store.run_id(origin) or "", wanted.name, found, [first] if own else [])
    return page


def _told(
    store: Store, run_id: str, name: str, found: ComparisonResult, compared: Sequence[str]
) -> None:
    """In the descriptions of the comparisons and, where there is a verdict, of the experiments that were compared."""
    holds, verdict = store.experiment_name(run_id), found.comparison.has_verdict
    if holds.rpartition("/")[2] == accounts.COMPARISONS:  # not the one that a user chose
        with suppress(Rejected, Unreachable):
            store.describe_experiment(holds, ABOUT_COMPARISONS)
    for place in dict.fromkeys([holds, *(compared if verdict else [])]):
        announce(store, holds, run_id, name, found.sentences, verdict=verdict, told_in=place)


__all__ = ["Compared", "Selection", "compare", "read", "select"]
