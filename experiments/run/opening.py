"""Opening of a campaign's or sweep's run with its journal, and reopening it to go on."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.config.settings import parameter_names, to_text
from experiments.config.stopping import STOP
from experiments.planning import treatments
from experiments.run import cell_run, journal_runs, mlflow_run
from experiments.run.preparation import PreparedCampaign
from experiments.run.recorder import Recorder
from models import own as own_models
from tracking import clock, journal, whereabouts
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Journal, JournalError
from tracking.records import VANISHED, RunClosed, RunKind, RunOpened, RunOutcome
from tracking.redaction import Redaction, secrets
from tracking.store import Store


def open_journal(
    prepared: PreparedCampaign,
    name: str,
    tags: Mapping[str, str],
    description: Mapping[str, Any],
    *,
    parent_run: str = "",
    params: Mapping[str, str] | None = None,
) -> Journal:
    """Open the run and its journal.

    From here on signals are held: the recorder, whose run it becomes, ends it in order.

    Args:
        prepared: Whose cells the run will have.
        name: Of the run.
        tags: Of the run, in addition to those of every campaign.
        description: What a resumption needs in addition to the settings.
        parent_run: Id of the run whose part it is; empty for a launch.
        params: Of the run, in addition to the settings.

    Raises:
        UsageError: If no journal can be kept.
    """
    STOP.hold()
    store, settings = Store(), prepared.settings
    experiment = mlflow_run.chosen_experiment(store, prepared.experiment)
    store.experiment_id(experiment)
    mlflow_run.describe(store, experiment, prepared.module)
    for place in {experiment, prepared.launches}:
        store.close_stale(place)
    redacted = Redaction(secrets(os.environ)).all(vars(settings))
    texts = {name: to_text(value) for name, value in redacted.items()}
    not_logged = cell_run.not_logged(settings) | parameter_names(settings)
    logged = {name: text for name, text in texts.items() if text and name not in not_logged}
    run = RunOpened(
        uuid.uuid4().hex,
        clock.now_ms(),
        experiment,
        name,
        {key: text for key, text in {**_tags(prepared), **tags}.items() if text},
        {**logged, **(params or {})},
    )
    opened, run_id = mlflow_run.open_run(store, run, adopt=not parent_run)
    if not parent_run:
        mlflow_run.link_launch(store, opened.experiment, run_id)
    folders = own_models.folders().items()
    full_description = {
        "study": prepared.study,
        "run": run.run,
        "run_id": run_id,
        "experiment": opened.experiment,
        "experiment_id": store.experiment_id(opened.experiment),
        "settings": asdict(settings),
        "idle": asdict(prepared.machine),
        "data": prepared.data.dataset.digest,
        "own_models": {name: [str(path), own_models.digest(name)] for name, path in folders},
        **description,
    }
    try:
        records = Journal(Path(settings.journal).resolve() / run_id)
        journal.write_campaign(records.folder, full_description)
        records.append(opened)
        for file_name, text in prepared.data.files.items():
            (records.folder / file_name).write_text(text, encoding="utf-8")
    except (OSError, JournalError) as error:
        reason = f"journal={settings.journal} cannot be written: {error}"
        store.apply([RunClosed(run.run, clock.now_ms(), RunOutcome.FAILED, reason)], Path())
        STOP.release()
        raise UsageError(ErrorCode.UNWRITABLE, f"{reason}; choose another folder") from None
    return records


def _tags(prepared: PreparedCampaign) -> dict[str, str]:
    machine, settings = prepared.machine, prepared.settings
    models = treatments.models_of(prepared.module, settings)
    return {
        "dataset": prepared.data.dataset.name,
        "model": ",".join(map(own_models.labelled, models)),
        **cell_run.origin_tags(prepared.study, settings),
        **prepared.data.tags,
        **machine.tags,
        **{f"not_available.machine_{name}": why for name, why in machine.not_available.items()},
        **whereabouts.process_tags(),
    }


def record_preparation(recorder: Recorder, prepared: PreparedCampaign) -> None:
    """Record data set, files and metrics from before the first cell in the campaign's run."""
    if prepared.data.dataset.name:
        recorder.write(cell_run.dataset_used(recorder.run, prepared.data.dataset))
    for name in prepared.data.files:
        recorder.keep_file(recorder.folder / name)
    recorder.keep_metrics(prepared.machine.metrics)


def reopen(description: Mapping[str, Any], records: Journal) -> None:
    """Set the run back to running, with signals held, and end what is open below it."""
    STOP.hold()
    store, run_id = Store(), description["run_id"]
    store.adopt(run_id, description["run"])
    # first, so that a campaign that begins now does not close this one as vanished
    store.tag(run_id, whereabouts.process_tags())
    store.reopen(run_id)
    mlflow_run.link_launch(store, description["experiment"], run_id)
    for record in journal.read_all(records.folder):
        if isinstance(record, RunOpened | RunClosed):
            clock.CLOCK.not_before(record.time_ms / 1_000)
    for run, recorded in journal_runs.read(records.folder).items():
        kind = recorded.tags.get("kind", RunKind.CELL)
        is_open = recorded.opened and not recorded.closed
        if not is_open or kind in (RunKind.CAMPAIGN, RunKind.SWEEP):
            continue
        outcome = RunOutcome.FAILED if kind == RunKind.TRIAL else RunOutcome.INTERRUPTED
        end_ms, reason = clock.now_ms(), VANISHED
        stored_id = store.run_id(run)
        stored = store.run(stored_id) if stored_id else None
        if stored and stored.end_ms:  # the server has an end that a full disk kept out of here
            end_ms, reason = stored.end_ms, stored.tags.get("outcome_reason", "")
            outcome = RunOutcome(stored.tags.get("outcome", RunOutcome.FAILED))
        records.append(RunClosed(run, end_ms, outcome, reason))
