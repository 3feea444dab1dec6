"""Tracking store: the only module that imports MLflow."""

from __future__ import annotations

import getpass
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import mlflow
import requests
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
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.models.model import MLMODEL_FILE_NAME
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.git_utils import get_git_branch, get_git_repo_url
from mlflow.utils.mlflow_tags import (
    MLFLOW_EXPERIMENT_PRIMARY_METRIC_GREATER_IS_BETTER,
    MLFLOW_EXPERIMENT_PRIMARY_METRIC_NAME,
    MLFLOW_GIT_BRANCH,
    MLFLOW_GIT_COMMIT,
    MLFLOW_GIT_DIFF,
    MLFLOW_GIT_DIRTY,
    MLFLOW_GIT_REPO_URL,
    MLFLOW_LOGGED_ARTIFACTS,
    MLFLOW_MODEL_VERSIONS,
    MLFLOW_RUN_NAME,
    MLFLOW_SOURCE_NAME,
    MLFLOW_SOURCE_TYPE,
    MLFLOW_USER,
)
from mlflow.utils.rest_utils import http_request, verify_rest_response

from tracking import first_use, limits, mlflow_defaults, plain, technical, whereabouts
from tracking.errors import ErrorCode, EvenhandError, UsageError, choices
from tracking.records import (
    VANISHED,
    Artifact,
    DatasetUsed,
    Metrics,
    ModelRegistered,
    ModelSaved,
    Point,
    Record,
    RunClosed,
    RunKind,
    RunOpened,
    RunOutcome,
    StoredRun,
    Tags,
)

mlflow_defaults.redirect_logs()
POINTS_A_CALL = 1_000
ENTRIES_A_CALL = 100
# Metrics of a run that describe its network, and so the model. MLflow shows them in both.
OF_MODELS = ("val/", "train/loss")
NOTE = "mlflow.note.content"  # the tag that the UI shows as a description (Markdown)
# Beginning of the paragraph of an experiment's description that names its newest result.
NEWEST = "Newest result"
# Tag of an experiment by which the UI shares the columns and charts of its list of runs.
VIEWS, OUR_VIEW = "mlflow.sharedViewState.", "evenhand"
# Order by which the UI lists the runs of a campaign one by one, the newest first, instead of
# folded below it: all have the same source.
FLAT = "tags.`mlflow.source.name`"
# Without this the UI opens its view for language models.
MODEL_TRAINING = "workflowType=machine_learning"
NEWEST_FIRST = "attributes.start_time DESC"
PAGE_SECONDS = 120  # a page of full runs takes a server seconds, longer with several readers

AGAIN_SECONDS = 1.0
TRIES = 3  # of a record that the server does not write while it writes others
PROBE = "evenhand.probe"

ROOT = Path(__file__).resolve().parent.parent


class Unreachable(EvenhandError):
    """The server did not answer, or could not write; the same call may succeed later."""


class Unwritten(Unreachable):
    """The server failed without a reason: it cannot write now, or can never write this record."""


class Rejected(EvenhandError):
    """The server does not accept a record; trying again will not help."""


class Store:
    """Tracking server, or file, that takes records. Each method may raise Unreachable."""

    def __init__(self, uri: str | None = None, *, to_read: bool = False) -> None:
        """Open the store at `uri`, or at MLFLOW_TRACKING_URI.

        Args:
            to_read: An SQLite store has to exist already.

        Raises:
            UsageError: It does not exist, no file can hold it, or MLflow cannot use it.
        """
        if uri:
            mlflow.set_tracking_uri(uri)
        self.uri = mlflow.get_tracking_uri()
        if to_read:
            first_use.require(self.uri)
        first_use.check(self.uri)
        try:
            with first_use.lock_first_use(self.uri):
                self._client = mlflow.MlflowClient(self.uri)
        except (MlflowException, ImportError) as error:  # a folder; a database without its driver
            raise UsageError(
                ErrorCode.UNREACHABLE,
                f"tracking store {self.uri} cannot be used: {_one_line(error)[:120]}; set "
                "MLFLOW_TRACKING_URI to a server's address, or to a file such as "
                "sqlite:///mlflow.db",
            ) from None
        self._run_ids: dict[str, str] = {}
        # Experiment and, if it has one, user of each run of a journal.
        self._homes: dict[str, tuple[str, str | None]] = {}
        self._experiment = ""
        self._experiment_ids: dict[str, str] = {}

    def check(self) -> None:
        """Raise UsageError if nothing usable answers at the tracking URI."""
        try:
            self._ask(self._client.search_experiments, max_results=1)
        except EvenhandError as error:
            # what the system reports is in the innermost of the errors that libraries wrap
            inner: BaseException = error
            while beneath := inner.__cause__ or inner.__context__:
                inner = beneath
            is_system = isinstance(inner, OSError) and inner.strerror
            reason = inner if self._is_remote and is_system else error
            raise UsageError(
                ErrorCode.UNREACHABLE,
                f"tracking store {self.uri} cannot be used: {reason}; set MLFLOW_TRACKING_URI, and "
                "if the server asks for a name and a password, MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD",
            ) from None

    @property
    def _is_remote(self) -> bool:
        return str(self.uri).startswith(("http://", "https://"))

    @property
    def absolute_uri(self) -> str:
        """Address that is the same store in any folder."""
        uri = str(self.uri)
        if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
            return f"sqlite:///{Path(uri.removeprefix('sqlite:///')).resolve()}"
        return uri if ":" in uri else str(Path(uri).resolve())

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

    def experiment_names(self) -> dict[str, str]:
        """Return the names of all experiments that the account may read, by id."""
        names: dict[str, str] = {}
        token = None
        while token != "":
            page = self._ask(self._client.search_experiments, page_token=token)
            names |= {str(experiment.experiment_id): experiment.name for experiment in page}
            token = page.token or ""
        return names

    def experiment_name(self, run_id: str) -> str:
        """Return the name of a run's experiment.

        Raises:
            Rejected: There is no such run, or the account may not read it.
        """
        run = self._ask(self._client.get_run, run_id)
        return str(self._ask(self._client.get_experiment, run.info.experiment_id).name)

    def describe_experiment(
        self, name: str, text: str = "", newest: str = "", *, replace: bool = True
    ) -> None:
        """Set the description of an experiment in the UI: a text and, below it, the newest result.

        Args:
            text: Used only if the experiment has no text yet.
            replace: Whether `newest` takes the place of an earlier result.
        """
        experiment = self.experiment_id(name)
        note = self._ask(self._client.get_experiment, experiment).tags.get(NOTE, "")
        paragraphs = [paragraph for paragraph in note.split("\n\n") if paragraph]
        results = [paragraph for paragraph in paragraphs if paragraph.startswith(NEWEST)]
        texts = [paragraph for paragraph in paragraphs if paragraph not in results] or [text]
        if newest and (replace or not results):
            results = [newest]
        described = "\n\n".join(filter(None, [*texts, *results]))
        self._ask(self._client.set_experiment_tag, experiment, NOTE, described)

    def share_view(
        self, name: str, columns: Sequence[str], charts: Sequence[str], kind: RunKind
    ) -> str:
        """Return the UI's address of an experiment's runs of one kind.

        Args:
            columns: Such as `tags.X`, `params.X`, `metrics.X`.
            charts: Metrics with which the charts begin.
        """
        parts = [column.split(".", 1) for column in columns]
        chart = {"type": "BAR", "metricSectionId": OUR_VIEW, "runsCountToCompare": 20}
        prefixes = dict.fromkeys(key.rpartition("/")[0] for key in charts)
        sections = [(OUR_VIEW, "primary outcomes"), *zip(prefixes, prefixes, strict=True)]
        state = {
            "searchFilter": f"tags.kind = '{kind}'",
            "orderByKey": FLAT,
            "orderByAsc": True,
            "selectedColumns": [f"{kind}.`{key}`" for kind, key in parts],
            "compareRunCharts": [
                {**chart, "uuid": key, "metricKey": key, "displayName": key} for key in charts
            ],
            "compareRunSections": [
                {"uuid": key, "name": title, "display": True} for key, title in sections
            ],
            "isAccordionReordered": True,
        }
        self._tag_experiment(name, {f"{VIEWS}{OUR_VIEW}": json.dumps(state)})
        place = f"#/experiments/{self.experiment_id(name)}/runs"
        return f"{place}?viewStateShareKey={OUR_VIEW}&{MODEL_TRAINING}"

    def set_primary_metric(self, name: str, metric: str, *, greater_is_better: bool) -> None:
        tags = {
            MLFLOW_EXPERIMENT_PRIMARY_METRIC_NAME: metric,
            MLFLOW_EXPERIMENT_PRIMARY_METRIC_GREATER_IS_BETTER: str(greater_is_better),
        }
        self._tag_experiment(name, tags)

    def _tag_experiment(self, name: str, tags: Mapping[str, str]) -> None:
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
        if name not in self._experiment_ids:
            experiment = self._ask(self._client.get_experiment_by_name, name)
            if experiment is None:
                return []
            self._experiment_ids[name] = experiment.experiment_id
        condition = f"tags.`{technical.SEPARATE['origin']}` = '{origin}'"
        runs = self._ask(self._client.search_runs, [self._experiment_ids[name]], condition)
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
        for run, of_run in groupby(accepted, key=lambda record: record.run):
            for kind, group in groupby(of_run, key=type):
                alike = list(group)
                batches = [alike] if kind in (Metrics, Tags) else [[record] for record in alike]
                for batch in batches:
                    refused += self._send(run, kind, batch, folder)
        return refused

    def _send(self, run: str, kind: type, batch: list[Any], folder: Path) -> list[str]:
        """Send records of one kind, halved until each refused one is sent separately.

        Raises:
            Unreachable: Also if the server fails without a reason, and writes no other record.
        """
        reason = ""
        for _ in range(TRIES):
            try:
                self._apply(run, kind, batch, folder)
                return []
            except (Rejected, UsageError) as error:
                reason = str(error)
                break
            except Unwritten as error:
                if not self._is_writable(run):
                    raise
                reason = f"set aside, the server fails on it and writes others: {error}"
                if len(batch) > 1:
                    break
        if len(batch) == 1:
            return [f"{kind.__name__} of {run}: {reason}"]
        half = len(batch) // 2
        parts = (batch[:half], batch[half:])
        return [line for part in parts for line in self._send(run, kind, part, folder)]

    def _is_writable(self, run: str) -> bool:
        """Set and remove a tag of a run to test whether the server writes at all."""
        run_id = self.run_id(run) or next(iter(self._run_ids.values()), None)
        if run_id is None:
            return True
        try:
            self._ask(self._client.set_tag, run_id, PROBE, str(time.time_ns()))
            self._ask(self._client.delete_tag, run_id, PROBE)
        except Rejected:  # answered with a reason: a deleted run, or a tag that is gone
            return True
        except Unreachable:
            return False
        return True

    def _apply(self, run: str, kind: type, records: list[Any], folder: Path) -> None:
        if kind is RunOpened:
            self._open(records[0])
            return
        run_id = self.run_id(run)
        if run_id is None:
            raise Rejected(
                ErrorCode.NOT_FOUND,
                "the run is not on this server, in the experiment where its journal has it",
            )
        if kind is Metrics:
            metrics = [
                Metric(point.key, point.value, point.time_ms, point.step)
                for record in records
                if not record.detail
                for point in record.points
            ]
            details = {
                f"{technical.METRIC}{point.key}": repr(point.value)
                for record in records
                if record.detail
                for point in record.points
            }
            if details:
                self.tag(run_id, details)
            for chunk in _chunks(metrics, POINTS_A_CALL):
                self._ask(self._client.log_batch, run_id, metrics=chunk)
        elif kind is Tags:
            values = {key: value for record in records for key, value in record.values.items()}
            self.tag(run_id, values)
        else:
            log: dict[type, Callable[[str, Any, Path], None]] = {
                Artifact: self._log_artifact,
                DatasetUsed: self._log_dataset,
                ModelSaved: self._log_model,
                ModelRegistered: self._register_model,
                RunClosed: self._close,
            }
            log[kind](run_id, records[0], folder)

    def _open(self, record: RunOpened) -> None:
        self.expect([record])
        run = _again(lambda: self._find_or_create(record))
        tags = {MLFLOW_RUN_NAME: record.name}
        for key, text in record.tags.items():  # `run:ORIGIN`: the id of that origin's run
            tags[key] = self.run_id(text[4:]) or "" if text.startswith("run:") else text
        self.tag(run.info.run_id, tags, run.data.tags)
        # MLflow's project runner has logged its own -P values, and params cannot be changed.
        new = [
            Param(key, value) for key, value in record.params.items() if key not in run.data.params
        ]
        for chunk in _chunks(new, ENTRIES_A_CALL):
            self._ask(self._client.log_batch, run.info.run_id, params=chunk)

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
        for chunk in _chunks(tags, ENTRIES_A_CALL):
            self._ask(self._client.log_batch, run_id, tags=chunk)

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
        logged = _again(lambda: self._find_or_create_model(run, record, linked))
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
        version = _again(lambda: self._find_or_create_version(run_id, model_id, record))
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
        for key in sorted(key for key in run.data.metrics if key.startswith(OF_MODELS)):
            last = max(self.points(run_id, key), key=lambda point: point.step)
            point = Metric(
                key, last.value, last.time_ms, last.step, model_id=model_id, run_id=run_id, **of
            )
            self._ask(self._client.log_batch, run_id, metrics=[point])

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

    def experiment_ids(self, names: Sequence[str]) -> list[str]:
        """Return the ids of experiments. Raises UsageError for one that does not exist."""
        ids = {name: self._active_experiment(name) for name in names}
        missing = next((name for name, experiment in ids.items() if experiment is None), None)
        if missing is None:
            return [str(experiment_id) for experiment_id in ids.values()]
        existing = choices(missing, sorted(self.experiment_names().values()))
        raise UsageError(
            ErrorCode.UNKNOWN_NAME,
            f"no experiment '{missing}' on {self.uri}; {existing}; call it in the folder of your "
            "campaigns, or set MLFLOW_TRACKING_URI to where they are",
        )

    def _active_experiment(self, name: str) -> str | None:
        """Return the id of an experiment, or None if there is none or it is deleted."""
        experiment = self._ask(self._client.get_experiment_by_name, name)
        is_active = experiment and experiment.lifecycle_stage == "active"
        return str(experiment.experiment_id) if is_active else None

    def runs(
        self,
        experiments: str | Sequence[str],
        condition: str = "",
        *,
        page: int = 500,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> Iterator[StoredRun]:
        """Yield the runs of experiments that MLflow's filter language selects, the newest first.

        The next page is fetched while the caller works on one.

        Args:
            experiments: Names; one that does not exist has no runs.
            progress: Called after each page with the number of runs so far, and None.

        Raises:
            Rejected: The condition does not parse.
        """
        names = [experiments] if isinstance(experiments, str) else experiments
        ids = [id_ for name in names if (id_ := self._active_experiment(name))]
        seen: set[str] = set()
        with ThreadPoolExecutor(1) as background:
            ahead = background.submit(self._page, ids, condition, page, "") if ids else None
            while ahead:
                runs, token = ahead.result()
                ahead = (
                    background.submit(self._page, ids, condition, page, token) if token else None
                )
                # a run that begins in between moves the others to later pages
                new = [run for run in runs if run.run_id not in seen]
                seen.update(run.run_id for run in new)
                if progress:
                    progress(len(seen), None)
                yield from new

    def _page(
        self, ids: Sequence[str], condition: str, size: int, token: str
    ) -> tuple[list[StoredRun], str | None]:
        """Return some runs, and the token of the next page, None on the last."""
        order = [NEWEST_FIRST]
        if not self._is_remote:
            runs = self._ask(
                self._client.search_runs,
                ids,
                condition,
                max_results=size,
                page_token=token or None,
                order_by=order,
            )
            return [stored_run(run) for run in runs], runs.token or None
        query = {
            "experiment_ids": ids,
            "filter": condition,
            "max_results": size,
            "page_token": token,
            "order_by": order,
        }
        search = "/api/2.0/mlflow/runs/search"
        answer = self._ask(
            lambda: self._http("POST", search, json=query, timeout=PAGE_SECONDS).json()
        )
        runs = [_from_json(run) for run in answer.get("runs", ())]
        return runs, answer.get("next_page_token")

    def _http(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        """Return an answer as it came: MLflow's client takes ten times as long to parse it."""
        credentials = get_default_host_creds(self.uri)
        answer = http_request(credentials, endpoint, method, **options)
        verified: requests.Response = verify_rest_response(answer, endpoint)
        return verified

    def call(self, method: str, endpoint: str, **options: Any) -> str:
        """Call an address that MLflow's client has no method for.

        Args:
            method: HTTP method.
            endpoint: Path of the address, from the server's root.
            options: Of `requests`, such as `params` or `json`.

        Returns:
            The body of the answer.

        Raises:
            Rejected: The server does not accept the request.
        """
        return str(self._ask(self._http, method, endpoint, **options).text)

    def points(self, run_id: str, key: str) -> list[Point]:
        """Return the whole history of a run's metric, in the order in which the server has it.

        Args:
            run_id: Id of the run.
            key: Name of the metric; one without values has no points.
        """
        history = self._ask(self._client.get_metric_history, run_id, key)
        return [Point(key, point.value, point.step, point.timestamp) for point in history]

    def file(self, run_id: str, path: str, folder: Path) -> Path | None:
        """Download an artifact to folder/run_id. Return None if the run has no such file."""
        target = folder / run_id
        try:
            files = self._ask(self._client.list_artifacts, run_id, path.rpartition("/")[0] or None)
            if not any(file.path == path and not file.is_dir for file in files):
                return None
            target.mkdir(parents=True, exist_ok=True)
            return Path(self._ask(self._client.download_artifacts, run_id, path, str(target)))
        except Rejected:
            return None

    def run(self, run_id: str) -> StoredRun | None:
        try:
            return stored_run(self._ask(self._client.get_run, run_id))
        except Rejected:
            return None

    def children(self, run_id: str, experiment: str) -> Iterator[StoredRun]:
        return self.runs(experiment, f"tags.campaign = '{run_id}'")

    def tagged(self, key: str, value: str) -> list[StoredRun]:
        """Return the runs of all experiments with a tag of this value, the newest first."""
        ids, condition = list(self.experiment_names()), f"tags.`{key}` = '{value}'"
        runs, token = self._page(ids, condition, 500, "")
        while token:
            page, token = self._page(ids, condition, 500, token)
            runs += page
        return runs

    def close_stale(self, experiment: str) -> list[str]:
        """End the runs whose process is gone (kill -9, power loss). Return their ids."""
        running = [
            run for run in self.runs(experiment, "attributes.status = 'RUNNING'") if _is_ours(run)
        ]
        campaigns = {run.tags.get("campaign", run.run_id) for run in running}
        alive = {
            campaign
            for campaign in campaigns
            if (run := self.run(campaign)) and run.status == "RUNNING" and _is_fresh(run)
        }
        stale = [run for run in running if run.tags.get("campaign", run.run_id) not in alive]
        for run in stale:
            # the clock of its machine may have been ahead of this one
            now_ms = max(run.start_ms, int(time.time() * 1_000))
            self._end(run.run_id, RunClosed(run.run_id, now_ms, RunOutcome.INTERRUPTED, VANISHED))
        return [run.run_id for run in stale]

    def active_runs(self, experiments: Sequence[str]) -> list[StoredRun]:
        """Return the campaigns and searches whose process is alive."""
        running = self.runs(experiments, "attributes.status = 'RUNNING'")
        kinds = (RunKind.CAMPAIGN, RunKind.SWEEP)
        return [run for run in running if run.tags.get("kind") in kinds and _is_fresh(run)]

    def page(self, experiment: str, run_id: str) -> str:
        """Return the address of a run for a browser, or the command that opens the UI first."""
        place = self.link(experiment, run_id)
        if self._is_remote:
            return f"{self.uri}/{place}"
        command = f"mlflow ui --backend-store-uri {self.uri}"
        return f"{command}   then open   http://127.0.0.1:5000/{place}"

    def link(self, experiment: str, run_id: str) -> str:
        """Return the address of a run in the UI, below the server's."""
        return f"#/experiments/{self.experiment_id(experiment)}/runs/{run_id}?{MODEL_TRAINING}"

    def address(self, run_id: str) -> str:
        """Return the address of a run by its id, without a password; empty without a server."""
        parts = urlsplit(self.uri)
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        return f"{place}/#/runs/{run_id}" if parts.scheme.startswith("http") else ""

    def list_of(self, experiment: str, run_id: str) -> str:
        """Return the UI's address, below the server's, of the list of a campaign's runs."""
        condition = quote(f"tags.campaign = '{run_id}'")
        place = f"#/experiments/{self.experiment_id(experiment)}/runs?searchFilter={condition}"
        return f"{place}&orderByKey={quote(FLAT)}&orderByAsc=true&{MODEL_TRAINING}"

    def _ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return the answer to a call, which is made twice if nothing answers at first."""
        return _again(lambda: self._ask_once(call, *arguments, **options))

    def _ask_once(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return the answer to a call; each error of MLflow becomes Unreachable or Rejected."""
        try:
            return call(*arguments, **options)
        except MlflowException as error:
            text = _one_line(error).removeprefix("INVALID_PARAMETER_VALUE: ")
            raise _error(error, text) from error
        except requests.HTTPError as error:
            status = error.response.status_code if error.response is not None else 500
            if 400 <= status < 500 and status not in (408, 429):
                raise Rejected(ErrorCode.DENIED, _one_line(error)) from error
            raise Unreachable(ErrorCode.UNREACHABLE, _one_line(error)) from error
        except (requests.RequestException, OSError) as error:
            raise Unreachable(ErrorCode.UNREACHABLE, _one_line(error)) from error
        except (ValueError, TypeError) as error:  # the client cannot read a request or an answer
            raise Unwritten(ErrorCode.UNREACHABLE, _one_line(error)) from error


def _error(error: MlflowException, text: str) -> EvenhandError:
    # BAD_REQUEST is any error of the database, such as of a standby that takes no writes
    is_failure = error.error_code in ("BAD_REQUEST", "INTERNAL_ERROR")
    if is_failure and "failed with exception" not in text:
        return Unwritten(ErrorCode.UNREACHABLE, text)
    if not is_failure and error.get_http_status_code() in (400, 403, 404, 409):
        return Rejected(ErrorCode.DENIED, text)
    return Unreachable(ErrorCode.UNREACHABLE, text)


def _one_line(error: Exception) -> str:
    return plain.line(" ".join(str(error).split()))[:300]


def _again(call: Callable[[], Any]) -> Any:
    """Return the answer to a call, at its second try if nothing answers the first."""
    try:
        return call()
    except Unreachable:
        time.sleep(AGAIN_SECONDS)
        return call()


def _existing(path: Path) -> Path:
    """Return a file or folder of a journal. Raises Rejected if it is missing."""
    if not path.exists():
        raise Rejected(ErrorCode.NOT_FOUND, f"{str(path)!a} is missing")
    return path


def source(
    entry_point: str, commit: str, changes: str = "", folder: Path | None = None
) -> dict[str, str]:
    """Return the tags of the UI's columns `Created by` and `Source`, and of the code's version.

    Args:
        entry_point: Name of the study or command.
        commit: Of `provenance.commit()`.
        changes: What differs from the commit, of which the beginning is recorded.
        folder: Of the code; None: this project.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    tags = {
        MLFLOW_USER: user,
        MLFLOW_SOURCE_NAME: f"evenhand {entry_point}",
        MLFLOW_SOURCE_TYPE: "PROJECT" if "MLFLOW_RUN_ID" in os.environ else "LOCAL",
    }
    if not commit:
        return tags
    head, _, digest = commit.partition("+")
    optional = {
        MLFLOW_GIT_BRANCH: get_git_branch(str(folder or ROOT)),
        MLFLOW_GIT_REPO_URL: get_git_repo_url(str(folder or ROOT)),  # without a password
        MLFLOW_GIT_DIFF: changes[: technical.CHARACTERS],
    }
    tags |= {MLFLOW_GIT_COMMIT: head, MLFLOW_GIT_DIRTY: str(bool(digest)).lower()}
    return tags | {name: text for name, text in optional.items() if text}


def note(text: str) -> dict[str, str]:
    """Return the tag that the UI shows as a run's description (Markdown)."""
    return {NOTE: text[:7_900]}


def table_tag(path: str) -> dict[str, str]:
    """Return the tag by which the UI shows an artifact of `log_table`'s format as a table."""
    return {MLFLOW_LOGGED_ARTIFACTS: json.dumps([{"path": path, "type": "table"}])}


def schema(columns: Mapping[str, str]) -> str:
    """Return MLflow's JSON of a data set's columns, for the UI.

    Args:
        columns: MLflow's data type by the name of the column.
    """
    entries = [{"type": kind, "name": name, "required": True} for name, kind in columns.items()]
    return json.dumps({"mlflow_colspec": entries})


def _is_ours(run: StoredRun) -> bool:
    """Return whether evenhand made a run; one that was killed at once has no kind yet."""
    return run.tags["kind"] in set(RunKind) if "kind" in run.tags else "origin" in run.tags


def _is_fresh(run: StoredRun) -> bool:
    return whereabouts.is_fresh(run.tags, run.start_ms / 1_000)


def stored_run(run: Any) -> StoredRun:
    """Return a run of MLflow's client with each tag by its own name."""
    info, data = run.info, run.data
    return _unpacked(
        StoredRun(
            info.run_id,
            info.run_name,
            info.status,
            info.start_time,
            info.end_time,
            data.params,
            data.metrics,
            data.tags,
        )
    )


def _from_json(run: Mapping[str, Any]) -> StoredRun:
    """Return a run of the REST API, where NaN and infinity are texts, and empty fields missing."""
    info, data = run["info"], run.get("data", {})
    params = {param["key"]: param.get("value", "") for param in data.get("params", ())}
    tags = {tag["key"]: tag.get("value", "") for tag in data.get("tags", ())}
    metrics = {metric["key"]: float(metric.get("value", 0.0)) for metric in data.get("metrics", ())}
    return _unpacked(
        StoredRun(
            info["run_id"],
            info.get("run_name", ""),
            info["status"],
            info.get("start_time", 0),
            info.get("end_time") or None,
            params,
            metrics,
            tags,
        )
    )


def _unpacked(run: StoredRun) -> StoredRun:
    """Return a run with each tag by its own name, and the metrics that are in the shared tag."""
    tags, details = technical.unpack_tags(run.tags), dict[str, float]()
    for name in [name for name in tags if name.startswith(technical.METRIC)]:
        text = tags.pop(name)
        with suppress(ValueError):  # a user has edited the tag
            details[name.removeprefix(technical.METRIC)] = float(text)
    return replace(run, metrics={**run.metrics, **details}, tags=tags)


def _chunks(entries: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (entries[i : i + size] for i in range(0, len(entries), size))
