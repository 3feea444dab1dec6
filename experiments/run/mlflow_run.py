"""Run of a launch in MLflow: adopted from `mlflow run`, or linked from it; experiments' texts."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.contract import Study
from experiments.metrics import PRIMARY_AT_MOST, shown_name
from tracking import accounts, clock, links
from tracking.errors import ErrorCode
from tracking.limits import RUN_NAME_CHARACTERS
from tracking.reader import Rejected, Unreachable
from tracking.records import (
    Artifact,
    Metrics,
    Point,
    Record,
    RunClosed,
    RunKind,
    RunOpened,
    RunOutcome,
    Tags,
)
from tracking.store import Store, note

ABOUT_COMPARISONS = "Comparisons\n\nOne run per comparison, with its report."


def chosen_experiment(store: Store, otherwise: str) -> str:
    """Return the experiment that the user passed to `mlflow run`, if any; else `otherwise`.

    One that collects launches is not meant as the place of measurements.
    """
    launch = os.environ.get("MLFLOW_RUN_ID", "")
    chosen = store.experiment_name(launch) if launch else ""
    is_of_launches = chosen == accounts.DEFAULT or chosen.rpartition("/")[2] == accounts.LAUNCHES
    return chosen if chosen and not is_of_launches else otherwise


def open_run(store: Store, run: RunOpened, *, adopt: bool = True) -> tuple[RunOpened, str]:
    """Open a run in its experiment, or in the one that the user chose, whose run it then adopts.

    Returns:
        The run as it was opened, and its id.
    """
    experiment = chosen_experiment(store, run.experiment)
    opened = replace(run, experiment=experiment)
    launch = os.environ.get("MLFLOW_RUN_ID", "")
    if adopt and launch and store.experiment_name(launch) == experiment:
        store.adopt(launch, opened.run)
    store.apply([opened], Path())
    run_id = store.run_id(opened.run)
    assert run_id is not None
    return opened, run_id


def log_result(
    store: Store,
    run: RunOpened,
    points: Sequence[Point],
    tags: dict[str, str],
    folder: Path,
    outcome: RunOutcome,
    reason: str,
) -> str:
    """Log a command's result as a run with metrics, tags and all files of a folder.

    Returns:
        The page of the run.

    Raises:
        Rejected: If the server refuses a record.
        Unreachable: If the server does not answer.
    """
    records: list[Record] = [
        Artifact(run.run, ".", ""),
        Metrics(run.run, tuple(points)),
        Tags(run.run, tags),
        RunClosed(run.run, clock.now_ms(), outcome, reason),
    ]
    opened, run_id = open_run(store, run)
    if refused := store.apply(records, folder):
        raise Rejected(ErrorCode.DENIED, refused[0])
    link_launch(store, opened.experiment, run_id, run.tags["kind"])
    return links.page(store, opened.experiment, run_id)


def describe(store: Store, experiment: str, study: Study) -> None:
    """Describe an experiment that may have no result yet."""
    judged = {outcome.metric: outcome for outcome in study.outcomes}
    named = {shown_name(metric): judged[metric] for metric in study.primary or judged}
    primary = [name for name in named if name][:PRIMARY_AT_MOST]
    columns = [f"metrics.{name}" for name in primary]
    side = "framework" if study.factor == "framework" else "treatment"
    columns += [f"tags.{side}", "tags.block", "tags.outcome"]
    is_greater_better = bool(primary) and named[primary[0]].better == "higher"
    runs = links.share_view(
        store, experiment, columns, primary, RunKind.CELL, greater_is_better=is_greater_better
    )
    text = (
        f"{study.title}\n\nOne campaign per launch, [one run per cell]({runs}); "
        "the verdict is in the campaign's report."
    )
    links.describe_experiment(store, experiment, text)


def announce(
    store: Store,
    experiment: str,
    run_id: str,
    name: str,
    sentences: Sequence[str],
    *,
    verdict: bool,
    told_in: str = "",
) -> None:
    """Write the newest result into the experiment's description, if the server answers.

    Args:
        store: The tracking server.
        experiment: Of the run.
        run_id: Of the result.
        name: Of the work.
        sentences: Of the result.
        verdict: True if it has one; a result without it never replaces one that has.
        told_in: The experiment that is described, if that is another one.
    """
    day = datetime.date.today().isoformat()
    with contextlib.suppress(Rejected, Unreachable):
        link = links.link(store, experiment, run_id)
        text = f"{links.NEWEST}, {day}: [{name}]({link}). {' '.join(sentences[:2])}"[:2_000]
        links.describe_experiment(store, told_in or experiment, newest=text, replace=verdict)


def link_launch(store: Store, experiment: str, run_id: str, what: str = "campaign") -> None:
    """Link from the run that `mlflow run` opened to the work's run, if they differ."""
    launch = os.environ.get("MLFLOW_RUN_ID", run_id)
    if launch == run_id:
        return
    link = links.link(store, experiment, run_id)
    text = f"This launch's {what} is [run {run_id}]({link}) in the experiment **{experiment}**."
    run = store.run(run_id)
    name = f"launch of {run.name if run else what}"[:RUN_NAME_CHARACTERS]
    tags = {"kind": RunKind.LAUNCH, "campaign": run_id, "mlflow.runName": name, **note(text)}
    store.tag(launch, tags)
