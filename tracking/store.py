"""Records written to a tracking server or file; sending one twice changes nothing."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LoggedModelOutput,
    LoggedModelStatus,
    Metric,
    Param,
    RunTag,
)
from mlflow.models import Model
from mlflow.models.model import MLMODEL_FILE_NAME
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS, MLFLOW_RUN_NAME, MLFLOW_USER

from tracking import limits, technical, whereabouts
from tracking.errors import ErrorCode, UsageError
from tracking.reader import Reader, Rejected, Unwritten, again
from tracking.records import (
    VANISHED,
    Artifact,
    DatasetUsed,
    Metrics,
    ModelRegistered,
    ModelSaved,
    Record,
    RunClosed,
    RunKind,
    RunOpened,
    RunOutcome,
    StoredRun,
    Tags,
)

# Metrics of a run that describe its network, and so the model. MLflow shows them in both.
OF_MODELS = ("val/", "train/loss")
NOTE = "mlflow.note.content"  # the tag that the UI shows as a description (Markdown)
TRIES = 3  # of a record that the server does not write while it writes others
PROBE = "evenhand.probe"


class Store(Reader):
    """Tracking server, or file, that takes records. Each method may raise Unreachable."""

    def __init__(self, uri: str | None = None, *, to_read: bool = False) -> None:
        """Open the store; see `Reader`."""
        super().__init__(uri, to_read=to_read)
        self._run_ids: dict[str, str] = {}
        # Experiment and, if it has one, user of each run of a journal.
        self._homes: dict[str, tuple[str, str | None]] = {}
        self._experiment = ""

    def experiment_id(self, name: str) -> str:
        """Return the id of an experiment, which is created if it does not exist."""
        experiment = self._ask(self._client.get_experiment_by_name, name)
        if experiment is None:
            try:
                return str(self._ask(self._client.create_experiment, name))
            except Rejected:
                experiment = self._ask(self._client.get_experiment_by_name, name)
                if experiment is None:  # or another process created it in between
                    raise
        if experiment.lifecycle_stage != "active":
            raise UsageError(
                ErrorCode.CONFLICT,
                f"experiment {name} on {self.uri} is deleted; "
                f"restore it: mlflow experiments restore -x {experiment.experiment_id}",
            )
        return str(experiment.experiment_id)

    def experiment_tags(self, name: str) -> dict[str, str]:
        return dict(self._ask(self._client.get_experiment, self.experiment_id(name)).tags)

    def tag_experiment(self, name: str, tags: Mapping[str, str]) -> None:
        experiment = self.experiment_id(name)
        for key, text in tags.items():
            self._ask(self._client.set_experiment_tag, experiment, key, text)

    def adopt(self, run_id: str, origin: str) -> None:
        """Use a run that MLflow's project runner, or an earlier process, has opened."""
        self._run_ids[origin] = run_id
        self._experiment = self.experiment_name(run_id)
        self.tag(run_id, {"origin": origin})

    def expect(
        self,
        opened: Iterable[RunOpened],
        experiment: str = "",
        run_ids: Mapping[str, str] | None = None,
    ) -> None:
        """Register runs whose records come without the one that opens them.

        Args:
            experiment: Of runs that the journal does not open, such as a sweep's.
            run_ids: Ids of runs by origin, as far as they are available.
        """
        homes = {record.run: (record.experiment, record.tags.get(MLFLOW_USER)) for record in opened}
        for origin, home in homes.items():  # another journal may use the same name
            if self._homes.get(origin, home) != home:
                self._run_ids.pop(origin, None)
        self._homes |= homes
        self._experiment = experiment or next((name for name, _ in reversed(homes.values())), "")
        self._run_ids |= run_ids or {}

    def run_id(self, origin: str) -> str | None:
        """Return the id of the run that any process has created for a journal's run."""
        if origin not in self._run_ids and (runs := self._runs_of(origin)):
            self._run_ids[origin] = max(runs, key=lambda run: len(run.data.tags)).info.run_id
        return self._run_ids.get(origin)

    def _runs_of(self, origin: str) -> list[Any]:
        """Return the runs of an origin: several if the answer to a creation was lost.

        They are searched in the experiment that the journal names, where only its team may write
        on a server with accounts. Clients set `mlflow.user`: it distinguishes the runs of two
        members of a team, and is no protection.
        """
        name, user = self._homes.get(origin, (self._experiment, None))
        if not limits.is_experiment(name):
            return []
        experiment = self._ask(self._client.get_experiment_by_name, name)
        if experiment is None:
            return []
        condition = f"tags.`{technical.SEPARATE['origin']}` = '{origin}'"
        runs = self._ask(self._client.search_runs, [experiment.experiment_id], condition)
        return [run for run in runs if user is None or run.data.tags.get(MLFLOW_USER, user) == user]

    def apply(self, records: Sequence[Record], folder: Path) -> list[str]:
        """Send records in order; a second time changes nothing.

        Args:
            folder: The journal's, to which the paths of artifacts are relative.

        Returns:
            What the server refused, one line each.
        """
        refused: list[str] = []
        accepted: list[Record] = []
        for record in records:
            acceptable, reasons = limits.acceptable_part(record)
            name = f"{type(record).__name__} of {ascii(record.run)[1:-1][:60]}"
            refused += [f"{name}: {reason}" for reason in reasons]
            if acceptable:
                accepted.append(acceptable)
        for (run, kind), batch in groupby(accepted, key=lambda record: (record.run, type(record))):
            refused += self._send(run, kind, list(batch), folder)
        return refused

    def _send(self, run: str, kind: type, batch: list[Any], folder: Path) -> list[str]:
        """Send records of one kind, halved until each refused one is sent separately.

        Raises:
            Unreachable: Also if the server fails without a reason, and writes no other record.
        """
        reason = ""
        # A single one again: an earlier try may be writing a copy.
        for _ in range(TRIES if len(batch) == 1 else 1):
            try:
                self._apply(run, kind, batch, folder)
                return []
            except (Rejected, UsageError) as error:
                reason = str(error)
            except Unwritten as error:
                self._write_probe(run)
                reason = f"set aside, the server fails on it and writes others: {error}"
        if len(batch) == 1:
            return [f"{kind.__name__} of {run}: {reason}"]
        parts = (batch[: len(batch) // 2], batch[len(batch) // 2 :])
        return [line for part in parts for line in self._send(run, kind, part, folder)]

    def _write_probe(self, run: str) -> None:
        """Set and remove a tag of a run. Raises Unreachable if the server writes nothing."""
        run_id = self.run_id(run) or next(iter(self._run_ids.values()), "")
        with suppress(Rejected):  # with a reason: a deleted run, none yet, or a tag that is gone
            self._ask(self._client.set_tag, run_id, PROBE, str(time.time_ns()))
            self._ask(self._client.delete_tag, run_id, PROBE)

    def _apply(self, run: str, kind: type, records: list[Any], folder: Path) -> None:
        if kind is RunOpened:
            for record in records:
                self._open(record)
            return
        run_id = self.run_id(run)
        if run_id is None:
            raise Rejected(
                ErrorCode.NOT_FOUND,
                "the run is not on this server, in the experiment where its journal has it",
            )
        if kind is Metrics:
            self._log_metrics(run_id, records)
        elif kind is Tags:
            self.tag(run_id, {key: text for each in records for key, text in each.values.items()})
        else:
            log: dict[type, Callable[[str, Any, Path], None]] = {
                Artifact: self._log_artifact,
                DatasetUsed: self._log_dataset,
                ModelSaved: self._log_model,
                ModelRegistered: self._register_model,
                RunClosed: self._close,
            }
            for record in records:
                log[kind](run_id, record, folder)

    def _log_metrics(self, run_id: str, records: Sequence[Metrics]) -> None:
        points = [(record.detail, point) for record in records for point in record.points]
        if details := {point.key: repr(point.value) for detail, point in points if detail}:
            self.tag(run_id, {f"{technical.METRIC}{key}": text for key, text in details.items()})
        shown = [
            Metric(point.key, point.value, point.time_ms, point.step)
            for detail, point in points
            if not detail
        ]
        self._ask(self._client.log_batch, run_id, metrics=shown)

    def _open(self, record: RunOpened) -> None:
        self.expect([record])
        run = again(lambda: self._find_or_create(record))
        tags = {MLFLOW_RUN_NAME: record.name}
        for key, text in record.tags.items():  # `run:ORIGIN`: the id of that origin's run
            tags[key] = self.run_id(text[4:]) or "" if text.startswith("run:") else text
        self.tag(run.info.run_id, tags, run.data.tags)
        # MLflow's project runner has logged its own -P values, and params cannot be changed.
        new = [
            Param(key, value) for key, value in record.params.items() if key not in run.data.params
        ]
        self._ask(self._client.log_batch, run.info.run_id, params=new)

    def _find_or_create(self, record: RunOpened) -> Any:
        """Return the run of a record. A new one holds its origin, user and process only.

        If the answer to its creation is lost, the next try finds it, or it is recognised as empty.
        """
        if run_id := self.run_id(record.run):
            return self._ask(self._client.get_run, run_id)
        names = (*whereabouts.WHEREABOUTS, MLFLOW_USER)
        tags = {"origin": record.run}
        tags |= {name: record.tags[name] for name in names if name in record.tags}
        run = self._ask_once(
            self._client.create_run,
            self.experiment_id(record.experiment),
            start_time=record.time_ms,
            tags=technical.pack_tags(tags),
            run_name=record.name,
        )
        self._run_ids[record.run] = str(run.info.run_id)
        return run

    def tag(
        self, run_id: str, values: Mapping[str, str], before: Mapping[str, str] | None = None
    ) -> None:
        """Set tags of a run.

        Args:
            before: The run's tags, if the caller has them: values are added to shared tags.
        """
        if before is None and any(map(technical.is_technical, values)):
            before = self._ask(self._client.get_run, run_id).data.tags
        tags = [RunTag(key, value) for key, value in technical.pack_tags(values, before).items()]
        self._ask(self._client.log_batch, run_id, tags=tags)

    def _log_artifact(self, run_id: str, record: Artifact, folder: Path) -> None:
        path = _existing(folder / record.path)
        log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        self._ask(log, run_id, str(path), record.folder or None)

    def _log_dataset(self, run_id: str, record: DatasetUsed, _: Path) -> None:
        place = record.source
        kind = "local" if place.startswith("/") else "code"
        source = {"uri": place} if kind == "local" else {"tags": {"description": place}}
        texts = (record.name, record.digest, kind, json.dumps(source))
        dataset = Dataset(*texts, record.schema, record.profile)
        inputs = [DatasetInput(dataset, [InputTag("mlflow.data.context", record.context)])]
        self._ask(self._client.log_inputs, run_id, datasets=inputs)

    def _log_model(self, run_id: str, record: ModelSaved, folder: Path) -> None:
        """Log a network by the client's steps: `log_model` would load the framework."""
        files = _existing(folder / record.folder)
        run = self._ask(self._client.get_run, run_id)
        outputs = run.outputs.model_outputs if run.outputs else []
        linked = {output.model_id for output in outputs}
        logged = again(lambda: self._find_or_create_model(run, record, linked))
        if logged.model_id in linked:
            return
        self._ask(self._client.log_model_artifacts, logged.model_id, str(files))
        model, entries = Model(run_id=run_id, model_id=logged.model_id), dict(record.native)
        model.add_flavor(entries.pop("flavor"), **entries)
        with tempfile.TemporaryDirectory() as temporary:
            model.save(f"{temporary}/{MLMODEL_FILE_NAME}")
            self._ask(self._client.log_model_artifacts, logged.model_id, temporary)
        self._log_quality(run, logged.model_id)
        self._ask(self._client.finalize_logged_model, logged.model_id, LoggedModelStatus.READY)
        self._ask(self._client.log_outputs, run_id, [LoggedModelOutput(logged.model_id, step=0)])

    def _find_or_create_model(self, run: Any, record: ModelSaved, linked: set[str]) -> Any:
        """Return a run's model of that name, a linked one first."""
        models = self._ask(
            self._client.search_logged_models,
            [run.info.experiment_id],
            f"source_run_id = '{run.info.run_id}'",
            order_by=[{"field_name": "creation_time", "ascending": True}],
        )
        of_name = [model for model in models if model.name == record.name]
        if of_name:
            return next((model for model in of_name if model.model_id in linked), of_name[0])
        return self._ask_once(
            self._client.create_logged_model,
            run.info.experiment_id,
            name=record.name,
            source_run_id=run.info.run_id,
            params=run.data.params,
            tags=note(record.description) if record.description else {},
        )

    def _register_model(self, run_id: str, record: ModelRegistered, _: Path) -> None:
        """Make a run's model a version of a registered model, or update the version that it is."""
        run = self._ask(self._client.get_run, run_id)
        if not (run.outputs and run.outputs.model_outputs):
            raise Rejected(ErrorCode.NOT_FOUND, f"{record.name}: the run has no logged model")
        model_id = run.outputs.model_outputs[0].model_id
        version = again(lambda: self._find_or_create_version(run_id, model_id, record))
        place, client = (record.name, version.version), self._client
        for key, text in record.tags.items():
            if version.tags.get(key) != text:
                self._ask(client.set_model_version_tag, *place, key, text)
        for key in version.tags.keys() - record.tags.keys():
            if key.startswith("verdict/"):
                self._ask(client.delete_model_version_tag, *place, key)
        for alias in record.aliases:
            self._ask(client.set_registered_model_alias, record.name, alias, version.version)
        if record.removed_aliases:
            aliases = self._ask(client.get_registered_model, record.name).aliases
            for alias in aliases.keys() & set(record.removed_aliases):
                self._ask(client.delete_registered_model_alias, record.name, alias)

    def _find_or_create_version(self, run_id: str, model_id: str, record: ModelRegistered) -> Any:
        condition = f"name = '{record.name}' and run_id = '{run_id}'"
        versions = self._ask(self._client.search_model_versions, condition)
        if versions:  # several if the answer to a creation was lost: always the same one
            return min(versions, key=lambda version: int(version.version))
        with suppress(Rejected):  # it exists; if it may not be made, nor may its version
            self._ask(self._client.create_registered_model, record.name)
        version = self._ask_once(
            self._client.create_model_version,
            record.name,
            f"models:/{model_id}",
            run_id,
            record.tags,
            await_creation_for=0,
            model_id=model_id,
        )
        # the link from the model's page, which servers make and files do not
        if MLFLOW_MODEL_VERSIONS not in self._ask(self._client.get_logged_model, model_id).tags:
            link = json.dumps([{"name": version.name, "version": version.version}])
            self._ask(self._client.set_logged_model_tags, model_id, {MLFLOW_MODEL_VERSIONS: link})
        return version

    def _log_quality(self, run: Any, model_id: str) -> None:
        """Log the run's metrics of its network again as the model's, with the data set used."""
        run_id = run.info.run_id
        datasets = [used.dataset for used in run.inputs.dataset_inputs] if run.inputs else []
        of = {}
        if datasets:
            of = {"dataset_name": datasets[0].name, "dataset_digest": datasets[0].digest}
        points = []
        for key in sorted(key for key in run.data.metrics if key.startswith(OF_MODELS)):
            last = max(self.points(run_id, key), key=lambda point: point.step)
            points.append(
                Metric(
                    key, last.value, last.time_ms, last.step, model_id=model_id, run_id=run_id, **of
                )
            )
        self._ask(self._client.log_batch, run_id, metrics=points)

    def _close(self, run_id: str, record: RunClosed, _: Path) -> None:
        for run in self._runs_of(record.run):
            is_empty = not (run.data.metrics or run.data.params)
            if run.info.run_id != run_id and is_empty:  # left behind by a lost answer
                text = f"Made by mistake, the server's answer was lost: the run is {run_id}."
                self.tag(run.info.run_id, note(text))
                status = RunOutcome.INTERRUPTED.status
                self._ask(self._client.set_terminated, run.info.run_id, status)
                with suppress(Rejected):  # a team may end it, not delete it
                    self._ask(self._client.delete_run, run.info.run_id)
            elif run.info.run_id == run_id and whereabouts.HEARTBEAT in run.data.tags:
                with suppress(Rejected):  # gone already, and the answer was lost
                    self._ask(self._client.delete_tag, run_id, whereabouts.HEARTBEAT)
        self._end(run_id, record)

    def _end(self, run_id: str, record: RunClosed) -> None:
        reason = {"outcome_reason": record.reason} if record.reason else {}
        self.tag(run_id, {"outcome": record.outcome, **reason})
        status = record.status or RunOutcome(record.outcome).status
        self._ask(self._client.set_terminated, run_id, status, record.time_ms)

    def reopen(self, run_id: str) -> None:
        """Set a run that ended early back to RUNNING, for a resumed campaign."""
        run = self._ask(self._client.get_run, run_id)
        for tag in {"outcome", "outcome_reason"} & set(run.data.tags):
            with suppress(Rejected):  # gone already, and the answer was lost
                self._ask(self._client.delete_tag, run_id, tag)
        self._ask(self._client.update_run, run_id, status="RUNNING")

    def beat(self, run_id: str) -> None:
        self.tag(run_id, {whereabouts.HEARTBEAT: str(int(time.time()))})

    def close_stale(self, experiment: str) -> list[str]:
        """End the runs whose process is gone (kill -9, power loss). Return their ids."""
        running = [
            run for run in self.runs(experiment, "attributes.status = 'RUNNING'") if _is_ours(run)
        ]
        campaigns = {run.tags.get("campaign", run.run_id) for run in running}
        alive = {
            campaign
            for campaign in campaigns
            if (run := self.run(campaign)) and run.status == "RUNNING" and whereabouts.is_fresh(run)
        }
        stale = [run for run in running if run.tags.get("campaign", run.run_id) not in alive]
        for run in stale:
            # the clock of its machine may have been ahead of this one
            now_ms = max(run.start_ms, int(time.time() * 1_000))
            self._end(run.run_id, RunClosed(run.run_id, now_ms, RunOutcome.INTERRUPTED, VANISHED))
        return [run.run_id for run in stale]


def _existing(path: Path) -> Path:
    """Return a file or folder of a journal. Raises Rejected if it is missing."""
    if not path.exists():
        raise Rejected(ErrorCode.NOT_FOUND, f"{str(path)!a} is missing")
    return path


def note(text: str) -> dict[str, str]:
    """Return the tag that the UI shows as a run's description (Markdown)."""
    return {NOTE: text[:7_900]}


def _is_ours(run: StoredRun) -> bool:
    """Return whether evenhand made a run; one that was killed at once has no kind yet."""
    return run.tags["kind"] in set(RunKind) if "kind" in run.tags else "origin" in run.tags
