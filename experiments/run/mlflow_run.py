"""The run of a launch in MLflow: in the run that `mlflow run` opened, or linked from it; descriptions of experiments."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.contract import Study
from tracking import accounts
from tracking.limits import RUN_NAME_CHARACTERS
from tracking.records import Record, RunKind, RunOpened
from tracking.store import NEWEST, Rejected, Store, Unreachable, named, note

ABOUT_COMPARISONS = "Comparisons\n\nOne run per comparison, with its report."


def chosen_experiment(store: Store, otherwise: str) -> str:
    """The experiment that the user gave to `mlflow run`, if one was; else `otherwise`."""
    here = os.environ.get("MLFLOW_RUN_ID", "")
    chosen = store.experiment_name(here) if here else ""
    return otherwise if not chosen or accounts.holds_launches(chosen) else chosen


def open_run(store: Store, wanted: RunOpened, *, adopt: bool = True) -> tuple[RunOpened, str]:
    """Opens a run in `wanted.experiment`, or in the one that the user chose, whose run it then adopts. Returns it with its id."""
    experiment = chosen_experiment(store, wanted.experiment)
    opened = replace(wanted, experiment=experiment)
    here = os.environ.get("MLFLOW_RUN_ID", "")
    if adopt and here and store.experiment_name(here) == experiment:
        store.adopt(here, opened.run)
    store.apply([opened], Path())
    run_id = store.run_id(opened.run)
    assert run_id is not None
    return opened, run_id


def keep(
    store: Store, wanted: RunOpened, records: Sequence[Record], folder: Path, what: str
) -> str:
    """Work that is already done, as a run of its own with its records; returns its page. Raises Rejected, Unreachable.

    folder: what the paths of artifacts are relative to. what: the work's name, for the launch that leads to it.
    """
    opened, run_id = open_run(store, wanted)
    if refused := store.apply(records, folder):
        raise Rejected(refused[0])
    link_launch(store, opened.experiment, run_id, what)
    return store.page(opened.experiment, run_id)


def describe(store: Store, experiment: str, study: Study) -> None:
    """What stands above an experiment's runs before there is a result."""
    of_phase = {
        one.metric.partition("/")[0]: f"metrics.{one.metric}" for one in reversed(study.outcomes)
    }
    told = [of_phase[phase] for phase in ("train", "inference") if phase in of_phase]
    runs = store.share_columns(experiment, [*told, "tags.framework", "tags.block", "tags.outcome"])
    text = f"{study.title}\n\nOne campaign per launch, [one run per cell]({runs}); the verdict is in the campaign's report."
    store.describe_experiment(experiment, text)


def announce(
    store: Store,
    experiment: str,
    run_id: str,
    name: str,
    found: Sequence[str],
    *,
    verdict: bool,
    told_in: str = "",
) -> None:
    """The newest result, in the experiment's description, where a newcomer looks first. A server that is away is not told.

    verdict: whether there is one; a result without any never takes another's place. told_in: the experiment whose description
    tells it, where that is not the run's own.
    """
    day = datetime.date.today().isoformat()
    with contextlib.suppress(Rejected, Unreachable):
        text = f"{NEWEST}, {day}: [{name}]({store.link(experiment, run_id)}). {' '.join(found[:2])}"
        store.describe_experiment(told_in or experiment, newest=text[:2_000], replace=verdict)


def link_launch(store: Store, experiment: str, run_id: str, what: str = "campaign") -> None:
    """The run that `mlflow run` opened, where it is not the work's own, leads to it."""
    here = os.environ.get("MLFLOW_RUN_ID", run_id)
    if here != run_id:
        text = f"This launch's {what} is [run {run_id}]({store.link(experiment, run_id)}) in the experiment **{experiment}**."
        run = store.run(run_id)
        name = f"launch of {run.name if run else what}"[:RUN_NAME_CHARACTERS]
        store.tag(here, {"kind": RunKind.LAUNCH, "campaign": run_id, **named(name), **note(text)})
