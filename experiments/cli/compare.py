"""Comparison of finished runs of a tracking server, logged with its report as a separate run."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import studies
from experiments.cli.campaign import print_answer, print_conditions, print_warnings, verdict_code
from experiments.cli.settings import Compare
from experiments.config import shell
from experiments.config.console import Display
from experiments.config.settings import as_text
from experiments.contract import Progress
from experiments.run.mlflow_run import ABOUT_COMPARISONS, announce, log_result
from tracking import accounts, clock, links, plain, provenance
from tracking.errors import ErrorCode, EvenhandError, UsageError
from tracking.links import source, table_tag
from tracking.reader import Rejected, Unreachable
from tracking.records import Point, RunKind, RunOpened, RunOutcome, StoredRun
from tracking.store import Store, note

if TYPE_CHECKING:
    from experiments.comparison.judgement import ComparisonResult
    from experiments.comparison.report.sections import Section
    from experiments.comparison.runs.sets import Kind
    from experiments.metrics import Outcome

# Kinds of campaigns whose commands are printed.
MAX_KINDS = 5
TEXT_CHARACTERS = 1_000
RACE_FILE = "race.toml"
_RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Selection:
    """Experiments by name, and MLflow's filters of their runs, any of which may match.

    Attributes:
        has_campaigns: True if campaigns were named by their run ids.
    """

    experiments: tuple[str, ...]
    conditions: tuple[str, ...]
    has_campaigns: bool = False


def run(settings: Compare, display: Display) -> int:
    """Compare runs, log and print the result. Return the exit code.

    Raises:
        UsageError: The call or the selection cannot be compared.
        Unreachable: The server does not answer.
    """
    from experiments.comparison.verdicts import conditions

    began_ms = clock.now_ms()
    failing = conditions.parse(settings.fail_if)
    store = Store(to_read=True)
    store.check()
    selection = _select(store, settings)
    runs = _read(store, selection, display.step)
    runs, notes = _without_running(store, selection, runs)
    answer, notes = _judge(settings, store, selection, runs, notes, display.step)
    outcomes = {finding.row.metric: finding.outcome for finding in answer.comparison.findings}
    conditions.check(failing, outcomes.values(), answer.comparison.primary)
    if answer.report is None:
        raise EvenhandError(
            ErrorCode.UNWRITABLE, f"{answer.trouble}; choose another folder (output=DIR)"
        )
    page = trouble = ""
    try:
        page = _log(store, settings, selection, answer, began_ms)
    except (Unreachable, Rejected) as error:
        trouble = str(error)
    display.rest()
    for line in notes:
        display.say(line)
    if settings.format == "table":
        print_warnings(map(str, answer.comparison.warnings), display)
        print_answer(answer, display)
        for line in answer.card.without_answer(answer.sentences):
            display.say(line)
        display.say("")
        display.say(f"report     {answer.report}")
    else:
        print(plain.visible(answer.text(settings.format)), end="")
    print_conditions(failing, answer.comparison, display)
    if trouble:
        raise EvenhandError(
            ErrorCode.UNREACHABLE, f"the report is on disk, but not on the server: {trouble}"
        )
    if settings.format == "table":
        display.say(f"MLflow UI  {page}")
    return verdict_code(failing, answer.comparison)


def _select(store: Store, settings: Compare) -> Selection:
    """Return the experiments and filters of names or run ids. Raises UsageError."""
    campaigns = [name for name in settings.experiment if _RUN_ID.fullmatch(name)]
    names = settings.experiment
    conditions: tuple[str, ...] = (settings.filter,)
    for run_id in campaigns:
        if store.run(run_id) is None:
            raise UsageError(
                ErrorCode.NOT_FOUND,
                f"no run {run_id} on {store.uri}; give a campaign's run id, or experiments by name",
            )
    if campaigns:
        if len(campaigns) < len(names):
            raise UsageError(
                ErrorCode.CONFLICT,
                "experiment: names and campaigns' run ids do not mix; give one kind",
            )
        names = tuple(store.experiment_name(run_id) for run_id in campaigns)
        narrowed = f" and {settings.filter}" if settings.filter else ""
        conditions = tuple(f"tags.campaign = '{run_id}'{narrowed}" for run_id in campaigns)
    store.experiment_ids(names)
    return Selection(tuple(dict.fromkeys(names)), conditions, bool(campaigns))


def _read(store: Store, selection: Selection, progress: Progress) -> list[StoredRun]:
    """Return the selected runs. Raises UsageError if a filter does not parse or matches nothing."""
    runs: list[StoredRun] = []
    for condition in selection.conditions:
        before = len(runs)
        progress("runs", before, None)
        try:
            report = partial(progress, "runs")
            runs.extend(store.runs(selection.experiments, condition, progress=report))
        except Rejected as error:
            raise UsageError(
                ErrorCode.INVALID_VALUE,
                f"filter {condition}: {error}; write it in MLflow's language: "
                f"tags.team = 'vision' and params.batch_size = '32'",
            ) from None
        if len(runs) == before:
            place = f"{', '.join(selection.experiments)} on {store.uri}"
            raise UsageError(
                ErrorCode.NO_RUNS,
                f"no run in {place} {f'matches {condition}' if condition else 'to compare'}",
            )
    return runs


def _without_running(
    store: Store, selection: Selection, runs: Sequence[StoredRun]
) -> tuple[list[StoredRun], list[str]]:
    """Return the runs without those of running campaigns, which only their run ids select."""
    running = {run.run_id: run for run in store.active_runs(selection.experiments)}
    affected = {run.tags["campaign"] for run in runs if run.tags.get("campaign") in running}
    if not affected:
        return list(runs), []
    names = ", ".join(f"{running[run_id].name} ({run_id})" for run_id in sorted(affected))
    if selection.has_campaigns:
        line = f"Still running: {names}. Only the cells that have ended are compared."
        return list(runs), [line]
    rest = [run for run in runs if run.tags.get("campaign") not in affected]
    again = shell.command("compare", "--experiment", ",".join(sorted(affected)))
    if not any(run.tags.get("kind") == RunKind.CELL for run in rest):
        raise UsageError(
            ErrorCode.NO_RUNS, f"all campaigns are still running: {names}; compare them: {again}"
        )
    return rest, [f"Left out, since still running: {names}. Compare them: {again}"]


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
    from experiments.comparison.runs import inputs, names, pairing, raw, sets
    from experiments.comparison.runs.query import table
    from experiments.contract import ReportAddition

    frame, kinds = table(runs), list[sets.Kind]()
    declared, primary, source_lines = _declared(settings, frame.columns)
    named = [declared.get(name, name) for name in settings.outcomes] or list(declared.values())
    spec = ComparisonSpec(
        factor=settings.factor,
        outcomes=named or None,
        and_others=not settings.outcomes,
        primary=settings.primary or primary,
        margin=settings.margin,
        strata=settings.strata,
        allowed_to_differ=(
            *studies.poolable_names(),
            *studies.names_differing_with(pairing.plain_name(settings.factor)),
        ),
        all_pairs=settings.all_pairs,
        protocol=settings.protocol,
        pair_by=settings.pair_by,
        ignore=settings.ignore,
        fail_if=settings.fail_if,
    )
    inputs.check_level_and_block(frame, spec.factor, spec.pair_by)
    if not selection.has_campaigns:
        frame, kinds = sets.choose_newest(
            frame,
            factor=spec.factor,
            strata=spec.strata,
            allowed_to_differ=spec.may_differ,
            pair_by=spec.pair_by,
        )
    notes = [*notes, *source_lines, *_other_kinds(settings, kinds)]
    if "campaign" in frame.columns and frame["campaign"].nunique() > 1:
        parents = store.runs(selection.experiments, f"tags.kind = '{RunKind.CAMPAIGN}'")
        frame = names.add_names(frame, ((run.run_id, run.name, run.start_ms) for run in parents))
    campaigns = names.names_by_run(frame)
    spec = replace(spec, baseline=campaigns.get(settings.baseline, settings.baseline) or None)
    if spec.fail_if and spec.baseline is None:
        candidates = pairing.without_controls(frame)
        levels = pairing.select_usable(
            candidates, factor=spec.factor, strata=spec.strata, pair_by=spec.pair_by
        ).levels
        raise UsageError(
            ErrorCode.MISSING_VALUE,
            f"fail_if is about a level against its baseline; add baseline={' or '.join(levels)}",
        )
    link = partial(links.address, store.uri)
    options = ReportOptions(
        f"Comparison: {_title(settings)}",
        figures=settings.figures,
        notes=tuple(notes),
        also=lambda _: ReportAddition([], sections=_campaign_section(campaigns, link)),
        link=link,
    )
    folder = Path(settings.output).resolve() / uuid.uuid4().hex
    steps = partial(raw.fetch, store, progress=partial(progress, "steps of the runs shown"))
    return answer(spec, frame, folder, options, steps), notes


def _declared(
    settings: Compare, columns: Collection[str]
) -> tuple[Mapping[str, Outcome], tuple[str, ...], list[str]]:
    """Return the rules of a file's outcomes by name, the primary ones, and a line on the file.

    Of `race.toml`, which the call does not name, only what the runs have counts. A file of the call
    may name no other metrics than those of the runs and of the catalogue.
    """
    from experiments.comparison.runs import query
    from experiments.config.race_file import load_outcomes
    from experiments.metrics import check_outcomes
    from experiments.studies.race import rules

    path, label = Path(RACE_FILE), RACE_FILE
    if settings.outcomes_file:
        path = Path(settings.outcomes_file).expanduser()
        label = f"outcomes_file={plain.path(path)}"
    elif not path.is_file():
        return {}, (), []
    outcomes, primary = load_outcomes(path, label)
    declared = {name: rules(name, outcome) for name, outcome in outcomes.items()}
    if settings.outcomes_file:
        others = (*query.FIRST, "params.", "tags.")
        check_outcomes(declared, [name for name in columns if not name.startswith(others)])
        return declared, primary, []
    declared = {name: outcome for name, outcome in declared.items() if name in columns}
    if not declared:
        return {}, (), []
    line = f"Judged by [outcomes] of {RACE_FILE} in this folder: {', '.join(declared)}."
    return declared, tuple(name for name in primary if name in columns), [line]


def _campaign_section(names: Mapping[str, str], link: Callable[[str], str]) -> list[Section]:
    from experiments.comparison.report.sections import Cell, Section

    if len(names) < 2:
        return []
    rows = [
        (name, Cell(run_id, link=link(run_id)))
        for run_id, name in sorted(names.items(), key=lambda item: item[1])
    ]
    return [Section("Campaigns", "What stands for which run in MLflow.", ("campaign", "run"), rows)]


def _other_kinds(settings: Compare, kinds: Sequence[Kind]) -> list[str]:
    """Return lines that name the compared kind of campaigns, and commands for the others."""
    if not kinds:
        return []
    newest, *others = kinds
    lines = [
        f"Compared: the newest {_described(newest)}. Campaigns with other settings "
        "are not pooled with it; each can be compared:"
    ]
    defaults = as_text(Compare()).items()
    options = dict(as_text(settings).items() - defaults)
    for kind in others[:MAX_KINDS]:
        options["experiment"] = ",".join(kind.campaigns)
        words = [word for name in sorted(options) for word in (f"--{name}", options[name])]
        lines.append(f"  {_described(kind)}: {shell.command('compare', *words)}")
    more = len(others) - MAX_KINDS
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
    from experiments.comparison.report import rendering, writing

    assert answer.report is not None
    origin, card = answer.report.parent.name, answer.card
    name = f"comparison · {_title(settings)} · {_local_time(began_ms)}"
    account = accounts.current(store)
    team = accounts.team_of(account, settings.team)
    tags = {"kind": RunKind.COMPARISON, "machine": provenance.fingerprint()}
    tags |= {"team": team} if team else {}
    tags |= source("compare", provenance.commit(), provenance.changes()) | accounts.tags(account)
    params = {
        name: text
        for name, text in as_text(settings).items()
        if text and name not in ("output", "format")
    }
    place = accounts.experiment_path(account, team, accounts.COMPARISONS)
    lines = [rendering.render("card.md.j2", card=card), "", "### Found"]
    lines += [f"- {sentence}" for sentence in answer.sentences]
    lines += ["", "The whole report: artifact `report.html`."]
    points = tuple(Point(key, value, 0, began_ms) for key, value in card.figures.items())
    more = card.without_answer(answer.sentences)
    result = {
        "answer": card.short,
        **({"verdict": " ".join(more)[:TEXT_CHARACTERS]} if more else {}),
        **note("\n".join(lines)),
        **table_tag(writing.VERDICTS),
    }
    opened = RunOpened(origin, began_ms, place, name, tags, params)
    page = log_result(store, opened, points, result, answer.report.parent, RunOutcome.OK, "")
    compared = selection.experiments[0]
    may_describe = account is None or not team or compared.startswith(f"{team}/")
    has_verdict = answer.comparison.has_verdict
    run_id = store.run_id(origin) or ""
    experiment = store.experiment_name(run_id)
    if experiment.rpartition("/")[2] == accounts.COMPARISONS:  # not the one that a user chose
        with suppress(Rejected, Unreachable):
            links.describe_experiment(store, experiment, ABOUT_COMPARISONS)
    described = dict.fromkeys([experiment, *([compared] if may_describe and has_verdict else [])])
    for place in described:
        announce(
            store, experiment, run_id, name, answer.sentences, verdict=has_verdict, told_in=place
        )
    return page
