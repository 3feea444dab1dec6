"""The only module that talks to MLflow."""

from __future__ import annotations

import base64
import difflib
import getpass
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
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
from mlflow.models import Model, ModelSignature
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.types.schema import ColSpec, Schema
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME, MLFLOW_USER
from mlflow.utils.rest_utils import http_request, verify_rest_response

from tracking import bundle, first_use, limits, plain, technical, whereabouts
from tracking.errors import EvenhandError, WrongCall
from tracking.records import (
    VANISHED,
    Artifact,
    DatasetUsed,
    Metrics,
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

POINTS_A_CALL = 1_000
ENTRIES_A_CALL = 100
NAMED = 8
ELSEWHERE = "call it in the folder of your campaigns, or set MLFLOW_TRACKING_URI to where they are"
# Metrics of a run that are properties of its network, and so of the model.
OF_MODELS = ("val/", "train/loss", "model/")
NOTE = "mlflow.note.content"  # the tag that the UI shows as a description (Markdown)
# The paragraph of an experiment's description that begins so leads to its newest result.
NEWEST = "Newest result"
# The UI's own way to share which columns its list of runs shows: a tag of the experiment, named in the list's address.
COLUMNS, OUR_COLUMNS = "mlflow.sharedViewState.", "evenhand"
# Without it the UI opens its view for language models.
MODEL_TRAINING = "workflowType=machine_learning"
NEWEST_FIRST, OLDEST_FIRST = "attributes.start_time DESC", "attributes.start_time ASC"
PAGE_SECONDS = (
    120  # a page of full runs takes a server seconds, and one that answers several readers longer
)

AGAIN_SECONDS = 1.0
# How often a record is tried that the server does not write while it writes others, before it is set aside.
TRIES = 3
PROBE = "evenhand.probe"

ROOT = Path(__file__).resolve().parent.parent
LOADER = re.compile(r"(?:experiments|models)(?:\.[a-z_][a-z0-9_]*)+")
REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?==[\w.+!-]+")


class Unreachable(EvenhandError):
    """The server did not answer, or could not work; the same call may succeed later."""


class Unwritten(Unreachable):
    """The server answered, but with no reason that lies in the record: it could not write, or it can never write this one."""


class Rejected(EvenhandError):
    """The server answered that this record is not acceptable; trying again will not help."""


class Store:
    """One tracking server (or file) seen through records. Every method may raise Unreachable."""

    def __init__(self, uri: str | None = None, *, to_read: bool = False) -> None:
        """uri: MLFLOW_TRACKING_URI where it is None. to_read: an SQLite store has to be there already.

        Raises WrongCall for one that is not, or that no file can hold.
        """
        if uri:
            mlflow.set_tracking_uri(uri)
        self.uri = mlflow.get_tracking_uri()
        if to_read:
            first_use.require(self.uri)
        first_use.check(self.uri)
        with first_use.alone(self.uri):
            self._client = mlflow.MlflowClient(self.uri)
        self._run_ids: dict[str, str] = {}
        # Of each journal's run its experiment and, where it has one, its user.
        self._homes: dict[str, tuple[str, str | None]] = {}
        self._experiment = ""
        self._places: dict[str, str] = {}  # experiments that were found: their ids by name

    def check(self) -> None:
        """Raises WrongCall if nothing usable answers at the tracking URI."""
        try:
            self._ask(self._client.search_experiments, max_results=1)
        except EvenhandError as error:
            if any(
                code in str(error)
                for code in ("error code 401", "error code 403", "UNAUTHENTICATED")
            ):
                raise WrongCall(
                    f"tracking server {self.uri} asks for a name and a password that may read it; "
                    "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN)"
                ) from None
            raise WrongCall(
                f"tracking store {self.uri} cannot be used: {self._reason(error)}; set MLFLOW_TRACKING_URI to one that can"
            ) from None

    def _reason(self, error: EvenhandError) -> str:
        """Of a server that does not answer, what the system says, not what three libraries have wrapped around it."""
        inner: BaseException = error
        while beneath := inner.__cause__ or inner.__context__:
            inner = beneath
        remote = self.uri.startswith(("http://", "https://"))
        return (
            str(inner) if remote and isinstance(inner, OSError) and inner.strerror else str(error)
        )

    def experiment_id(self, name: str) -> str:
        """The id of the experiment, made if it is not there yet."""
        found = self._ask(self._client.get_experiment_by_name, name)
        if found is None:
            try:
                return str(self._ask(self._client.create_experiment, name))
            except Rejected:
                found = self._ask(self._client.get_experiment_by_name, name)
                if found is None:  # or another process made it in between
                    raise
        if found.lifecycle_stage != "active":
            raise WrongCall(
                f"experiment {name} on {self.uri} is deleted; restore it: mlflow experiments restore -x {found.experiment_id}"
            )
        return str(found.experiment_id)

    def experiment_names(self) -> dict[str, str]:
        """Id → name of every experiment."""
        return {
            str(one.experiment_id): one.name for one in self._ask(self._client.search_experiments)
        }

    def experiment_name(self, run_id: str) -> str:
        """The name of the experiment that a run belongs to."""
        run = self._ask(self._client.get_run, run_id)
        return str(self._ask(self._client.get_experiment, run.info.experiment_id).name)

    def describe_experiment(
        self, name: str, text: str = "", newest: str = "", *, replace: bool = True
    ) -> None:
        """What the UI says of an experiment: `text`, unless somebody has written another, and below it the newest result.

        replace: whether this result takes the place of one that is there.
        """
        experiment = self.experiment_id(name)
        known = self._ask(self._client.get_experiment, experiment).tags.get(NOTE, "").split("\n\n")
        own = [one for one in known if one and not one.startswith(NEWEST)] or [text]
        before = [one for one in known if one.startswith(NEWEST)]
        last = [newest] if newest and (replace or not before) else before
        self._ask(
            self._client.set_experiment_tag,
            experiment,
            NOTE,
            "\n\n".join(filter(None, [*own, *last])),
        )

    def share_columns(self, name: str, columns: Sequence[str]) -> str:
        """The UI's address, below the server's, of an experiment's runs with these columns: tags.X, params.X, metrics.X."""
        experiment, quoted = (
            self.experiment_id(name),
            [f"{kind}.`{key}`" for kind, key in (c.split(".", 1) for c in columns)],
        )
        shared = json.dumps({"selectedColumns": quoted})
        self._ask(self._client.set_experiment_tag, experiment, f"{COLUMNS}{OUR_COLUMNS}", shared)
        return f"#/experiments/{experiment}/runs?viewStateShareKey={OUR_COLUMNS}&{MODEL_TRAINING}"

    def adopt(self, run_id: str, origin: str) -> None:
        """Makes a run that MLflow's project runner has opened, or an earlier process, the run of `origin`."""
        self._run_ids[origin] = run_id
        self._experiment = self.experiment_name(run_id)
        self.tag(run_id, {"origin": origin})

    def expect(
        self,
        opened: Iterable[RunOpened],
        experiment: str = "",
        run_ids: Mapping[str, str] | None = None,
    ) -> None:
        """Learns where a journal's runs belong, for records that come without the one that opened their run.

        experiment: of runs that the journal does not open, such as a sweep that another process began. run_ids: by origin,
        where they are known.
        """
        homes = {record.run: (record.experiment, record.tags.get(MLFLOW_USER)) for record in opened}
        for origin, home in homes.items():  # another journal may call another run so
            if self._homes.get(origin, home) != home:
                self._run_ids.pop(origin, None)
        self._homes |= homes
        self._experiment = experiment or next((name for name, _ in reversed(homes.values())), "")
        self._run_ids |= run_ids or {}

    def run_id(self, origin: str) -> str | None:
        """The run made for a journal's run, in whichever process that was."""
        if origin not in self._run_ids and (found := self._made_for(origin)):
            self._run_ids[origin] = max(found, key=lambda run: len(run.data.tags)).info.run_id
        return self._run_ids.get(origin)

    def _made_for(self, origin: str) -> list[Any]:
        """More than one where the answer to a creation was lost; all but one of them are bare.

        What binds is the experiment that the journal names: on a server with accounts none but its team and administrators may
        write there, whoever else copies the tag. `mlflow.user` is a client's own word, as is every field of a run: it tells the
        runs of two members of one team apart, and protects no team from its own members.
        """
        name, user = self._homes.get(origin, (self._experiment, None))
        if not (limits.is_experiment(name) and limits.is_origin(origin)):
            return []
        if name not in self._places:
            experiment = self._ask(self._client.get_experiment_by_name, name)
            if experiment is None:
                return []
            self._places[name] = experiment.experiment_id
        of_origin = f"tags.`{technical.ALONE['origin']}` = '{origin}'"
        found = self._ask(self._client.search_runs, [self._places[name]], of_origin)
        return [
            run for run in found if user is None or run.data.tags.get(MLFLOW_USER, user) == user
        ]

    def apply(self, records: Sequence[Record], folder: Path) -> list[str]:
        """Sends records in order; a second time changes nothing. Returns what the server refused, one line each.

        folder: the journal's, which the paths of artifacts are relative to.
        """
        refused: list[str] = []
        for run, of_run in groupby(self._taken(records, refused), key=lambda record: record.run):
            for kind, group in groupby(of_run, key=type):
                alike = list(group)
                for some in [alike] if kind in (Metrics, Tags) else [[record] for record in alike]:
                    refused += self._send(run, kind, some, folder)
        return refused

    def _taken(self, records: Sequence[Record], refused: list[str]) -> Iterator[Record]:
        """Records in the form that every server accepts."""
        for record in records:
            found, left_out = limits.taken(record)
            refused += [
                f"{type(record).__name__} of {ascii(record.run)[1:-1][:60]}: {line}"
                for line in left_out
            ]
            if found:
                yield found

    def _send(self, run: str, kind: type, some: list[Any], folder: Path) -> list[str]:
        """Sends alike records of a run, down to the single one that is not acceptable. Returns those, one line each.

        An answer without a reason is none of the record's where the server writes nothing else either: raises Unreachable then.
        """
        for _ in range(TRIES):
            try:
                self._apply(run, kind, some, folder)
                return []
            except (Rejected, WrongCall) as error:
                reason = str(error)
                break
            except Unwritten as error:
                if not self._writes(run):
                    raise
                reason = f"set aside, the server fails on it and writes others: {error}"
                if len(some) > 1:
                    break
        if len(some) == 1:
            return [f"{kind.__name__} of {run}: {reason}"]
        half = len(some) // 2
        return self._send(run, kind, some[:half], folder) + self._send(
            run, kind, some[half:], folder
        )

    def _writes(self, run: str) -> bool:
        """Whether the server writes at all now: a tag comes to a run and goes again."""
        run_id = self.run_id(run) or next(iter(self._run_ids.values()), None)
        if run_id is None:
            return True
        try:
            self._ask(self._client.set_tag, run_id, PROBE, str(time.time_ns()))
            self._ask(self._client.delete_tag, run_id, PROBE)
        except Rejected:  # a deleted run, or a tag that is gone: this was answered with a reason
            return True
        except Unreachable:
            return False
        return True

    def _apply(self, run: str, kind: type, records: list[Any], folder: Path) -> None:
        if kind is RunOpened:
            for record in records:
                self._open(record)
            return
        run_id = self.run_id(run)
        if run_id is None:
            raise Rejected(
                "the run is not on this server, in the experiment where its journal has it"
            )
        if kind is Metrics:
            self._log_metrics(run_id, [point for record in records for point in record.points])
        elif kind is Tags:
            self.tag(
                run_id, {key: value for record in records for key, value in record.values.items()}
            )
        else:
            log: dict[type, Callable[[str, Any, Path], None]] = {
                Artifact: self._log_artifact,
                DatasetUsed: self._log_dataset,
                ModelSaved: self._log_model,
                RunClosed: self._close,
            }
            for record in records:
                log[kind](run_id, record, folder)

    def _open(self, record: RunOpened) -> None:
        self.expect([record])
        begun = _again(lambda: self._begun(record.run) or self._create(record))
        run_id = begun.info.run_id
        self.tag(
            run_id, {MLFLOW_RUN_NAME: record.name, **self._resolved(record.tags)}, begun.data.tags
        )
        # MLflow's project runner has logged its own -P values, as typed, and params cannot be changed.
        new = [
            Param(key, value)
            for key, value in record.params.items()
            if key not in begun.data.params
        ]
        for chunk in _chunks(new, ENTRIES_A_CALL):
            self._ask(self._client.log_batch, run_id, params=chunk)

    def _begun(self, origin: str) -> Any | None:
        """The run made for a journal's run, with what is in it."""
        run_id = self.run_id(origin)
        return self._ask(self._client.get_run, run_id) if run_id else None

    def _create(self, record: RunOpened) -> Any:
        """A run with only its origin, user and process: should the answer be lost, the next try finds it or it says nothing."""
        kept = (*whereabouts.WHEREABOUTS, MLFLOW_USER)
        tags = {
            "origin": record.run,
            **{key: record.tags[key] for key in kept if key in record.tags},
        }
        told = {
            "start_time": record.time_ms,
            "tags": technical.packed(tags),
            "run_name": record.name,
        }
        made = self._ask_once(
            self._client.create_run, self.experiment_id(record.experiment), **told
        )
        self._run_ids[record.run] = str(made.info.run_id)
        return made

    def _resolved(self, tags: Mapping[str, str]) -> dict[str, str]:
        """`run:ORIGIN` in a tag stands for the id that the run of that origin has on this server."""
        return {
            key: self.run_id(text[4:]) or "" if text.startswith("run:") else text
            for key, text in tags.items()
        }

    def tag(
        self, run_id: str, values: Mapping[str, str], before: Mapping[str, str] | None = None
    ) -> None:
        """Sets tags of a run; those that share one are added to what it holds. before: the run's tags, where they are known."""
        if before is None and any(map(technical.is_technical, values)):
            before = self._ask(self._client.get_run, run_id).data.tags
        for chunk in _chunks(
            [RunTag(key, value) for key, value in technical.packed(values, before).items()],
            ENTRIES_A_CALL,
        ):
            self._ask(self._client.log_batch, run_id, tags=chunk)

    def _log_metrics(self, run_id: str, points: Sequence[Point]) -> None:
        for chunk in _chunks(
            [Metric(p.key, p.value, p.time_ms, p.step) for p in points], POINTS_A_CALL
        ):
            self._ask(self._client.log_batch, run_id, metrics=chunk)

    def _log_artifact(self, run_id: str, record: Artifact, folder: Path) -> None:
        path, target = _below(folder, record.path), record.folder or None
        if target and not limits.is_path(target):
            raise Rejected(f"{ascii(target)[:60]} is no folder of artifacts")
        log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        self._ask(log, run_id, str(path), target)

    def _log_dataset(self, run_id: str, record: DatasetUsed, _: Path) -> None:
        dataset = Dataset(
            record.name, record.digest, "local", record.source, record.schema, record.profile
        )
        inputs = [DatasetInput(dataset, [InputTag("mlflow.data.context", record.context)])]
        self._ask(self._client.log_inputs, run_id, datasets=inputs)

    def _log_model(self, run_id: str, record: ModelSaved, folder: Path) -> None:
        """By the client's own steps: `log_model` would load the model here, and a framework with it."""
        data = _below(folder, record.data)
        _check_model(record)
        run = self._ask(self._client.get_run, run_id)
        linked = {output.model_id for output in run.outputs.model_outputs} if run.outputs else set()
        made = _again(
            lambda: self._begun_model(run, record.name, linked) or self._create_model(run, record)
        )
        if made.model_id in linked:
            return
        with tempfile.TemporaryDirectory() as temporary:
            try:
                _save_model(
                    Path(temporary) / "model",
                    Model(run_id=run_id, model_id=made.model_id),
                    record,
                    data,
                )
            except (MlflowException, OSError, ValueError) as error:
                raise Rejected(f"the model could not be packed: {error}") from error
            self._ask(self._client.log_model_artifacts, made.model_id, f"{temporary}/model")
        self._log_quality(run, made.model_id)
        self._ask(self._client.finalize_logged_model, made.model_id, LoggedModelStatus.READY)
        self._ask(self._client.log_outputs, run_id, [LoggedModelOutput(made.model_id, step=0)])

    def _begun_model(self, run: Any, name: str, linked: set[str]) -> Any:
        """The model of that name made for a run: the one it leads to; else the first that was begun, where an answer was lost."""
        condition, order = (
            f"source_run_id = '{run.info.run_id}'",
            [{"field_name": "creation_time", "ascending": True}],
        )
        found = self._ask(
            self._client.search_logged_models, [run.info.experiment_id], condition, order_by=order
        )
        named = [model for model in found if model.name == name]
        return next(
            (model for model in named if model.model_id in linked), named[0] if named else None
        )

    def _create_model(self, run: Any, record: ModelSaved) -> Any:
        told = {
            "name": record.name,
            "params": run.data.params,
            "tags": note(record.description) if record.description else {},
        }
        create = self._client.create_logged_model
        return self._ask_once(create, run.info.experiment_id, source_run_id=run.info.run_id, **told)

    def _log_quality(self, run: Any, model_id: str) -> None:
        """What the run has measured of its network, once more as the model's own, with the data set that it was measured on."""
        used = [one.dataset for one in run.inputs.dataset_inputs] if run.inputs else []
        of = {"dataset_name": used[0].name, "dataset_digest": used[0].digest} if used else {}
        for key in sorted(key for key in run.data.metrics if key.startswith(OF_MODELS)):
            last = max(self.points(run.info.run_id, key), key=lambda point: point.step)
            point = Metric(
                key,
                last.value,
                last.time_ms,
                last.step,
                model_id=model_id,
                run_id=run.info.run_id,
                **of,
            )
            self._ask(self._client.log_batch, run.info.run_id, metrics=[point])

    def _close(self, run_id: str, record: RunClosed, _: Path) -> None:
        for other in self._made_for(record.run):
            # Whatever holds values was not left behind by a lost answer.
            if other.info.run_id != run_id and not (other.data.metrics or other.data.params):
                self._end_double(other.info.run_id, of=run_id)
            elif other.info.run_id == run_id and whereabouts.HEARTBEAT in other.data.tags:
                with suppress(Rejected):  # gone already, and the answer was lost
                    self._ask(self._client.delete_tag, run_id, whereabouts.HEARTBEAT)
        self._end(run_id, record)

    def _end(self, run_id: str, record: RunClosed) -> None:
        self.tag(
            run_id,
            {
                "outcome": record.outcome,
                **({"outcome_reason": record.reason} if record.reason else {}),
            },
        )
        status = record.status or RunOutcome(record.outcome).status
        self._ask(self._client.set_terminated, run_id, status, record.time_ms)

    def _end_double(self, run_id: str, of: str) -> None:
        """A run that a creation left behind whose answer came too late or never; a team may end it, not delete it."""
        self.tag(run_id, note(f"Made by mistake, the server's answer was lost: the run is {of}."))
        self._ask(self._client.set_terminated, run_id, RunOutcome.INTERRUPTED.status)
        with suppress(Rejected):
            self._ask(self._client.delete_run, run_id)

    def reopen(self, run_id: str) -> None:
        """Sets a run that ended early back to RUNNING, for a resumed campaign."""
        run = self._ask(self._client.get_run, run_id)
        for tag in {"outcome", "outcome_reason"} & set(run.data.tags):
            with suppress(Rejected):  # gone already, and the answer was lost
                self._ask(self._client.delete_tag, run_id, tag)
        self._ask(self._client.update_run, run_id, status="RUNNING")

    def beat(self, run_id: str) -> None:
        """Says that the process behind a run is alive; `close_stale` listens."""
        self.tag(run_id, {whereabouts.HEARTBEAT: str(int(time.time()))})

    def experiment_ids(self, names: Sequence[str]) -> list[str]:
        """The ids of experiments that must be there. Raises WrongCall naming those that are."""
        found = {name: self._experiment_named(name) for name in names}
        for name in (name for name, experiment in found.items() if experiment is None):
            have = sorted(
                experiment.name for experiment in self._ask(self._client.search_experiments)
            )
            close = difflib.get_close_matches(name, have, n=1)
            told = ", ".join(have[:NAMED]) + (
                f" and {len(have) - NAMED} more" if len(have) > NAMED else ""
            )
            hint = f"did you mean '{close[0]}'? " if close else ""
            right = (
                f"{hint}have {told}"
                if set(have) - {"Default"}
                else f"nothing was recorded there; {ELSEWHERE}"
            )
            raise WrongCall(f"no experiment '{name}' on {self.uri}; {right}")
        return [str(experiment.experiment_id) for experiment in found.values()]

    def _experiment_named(self, name: str) -> Any:
        """The experiment, or None where there is none or it is deleted."""
        found = self._ask(self._client.get_experiment_by_name, name)
        return found if found and found.lifecycle_stage == "active" else None

    def runs(
        self,
        experiments: str | Sequence[str],
        condition: str = "",
        *,
        page: int = 500,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> Iterator[StoredRun]:
        """All runs of experiments that MLflow's filter language selects, each once; none of an experiment that is not there.

        While the caller works on pages the next are fetched. progress(runs so far, None) is called after every page: how many
        are to come, MLflow does not say. Raises Rejected for a condition that does not parse.
        """
        names = [experiments] if isinstance(experiments, str) else experiments
        places = [
            str(found.experiment_id) for name in names if (found := self._experiment_named(name))
        ]
        seen: set[str] = set()
        pages = self._from_both_ends if self.uri.startswith("http") else self._in_order
        for found in pages(places, condition, page) if places else ():
            # A run that begins in between moves the others to later pages.
            new = [run for run in found if run.run_id not in seen]
            seen.update(run.run_id for run in new)
            if progress:
                progress(len(seen), None)
            yield from new

    def _in_order(
        self, places: Sequence[str], condition: str, size: int
    ) -> Iterator[list[StoredRun]]:
        """Pages, each fetched while the caller works on the one before."""
        with ThreadPoolExecutor(1) as background:
            ahead = background.submit(self._page, places, condition, size, "")
            while True:
                found, token = ahead.result()
                if token:
                    ahead = background.submit(self._page, places, condition, size, token)
                yield found
                if not token:
                    return

    def _from_both_ends(
        self, places: Sequence[str], condition: str, size: int
    ) -> Iterator[list[StoredRun]]:
        """Pages from the newest and from the oldest run on, until they meet: a server answers two requests on two processors."""
        with ThreadPoolExecutor(2) as background:

            def ask(within: str) -> list[Future[tuple[list[StoredRun], str]]]:
                narrowed = " and ".join(filter(None, [condition, within]))
                return [
                    background.submit(self._page, places, narrowed, size, "", order)
                    for order in (NEWEST_FIRST, OLDEST_FIRST)
                ]

            within, ahead = "", ask("")
            while True:
                (newest, more), (oldest, _) = (one.result() for one in ahead)
                met = not more or oldest[-1].start_ms > newest[-1].start_ms
                if not met:
                    before = within
                    within = f"attributes.start_time >= {oldest[-1].start_ms} and attributes.start_time <= {newest[-1].start_ms}"
                    if (
                        within == before
                    ):  # more runs began in one millisecond than a page holds: time cannot tell them apart
                        yield from self._in_order(places, condition, size)
                        return
                    ahead = ask(within)
                yield newest
                yield oldest
                if met:
                    return

    def _page(
        self,
        places: Sequence[str],
        condition: str,
        size: int,
        token: str,
        order: str = NEWEST_FIRST,
    ) -> tuple[list[StoredRun], str]:
        """Some runs, and the token of the next page, empty on the last."""
        if not self.uri.startswith("http"):
            runs = self._ask(
                self._client.search_runs,
                places,
                condition,
                max_results=size,
                page_token=token or None,
                order_by=[order],
            )
            return [stored_run(run) for run in runs], runs.token or ""
        wanted = {
            "experiment_ids": places,
            "filter": condition,
            "max_results": size,
            "page_token": token,
            "order_by": [order],
        }
        search = "/api/2.0/mlflow/runs/search"
        answer = self._ask(
            lambda: self._http("POST", search, json=wanted, timeout=PAGE_SECONDS).json()
        )
        return [_from_json(run) for run in answer.get("runs", ())], answer.get(
            "next_page_token", ""
        )

    def _http(self, method: str, endpoint: str, **named: Any) -> requests.Response:
        """An answer of the server as it came: MLflow's client takes ten times as long to make its entities of it."""
        answer: requests.Response = http_request(
            get_default_host_creds(self.uri), endpoint, method, **named
        )
        if answer.status_code != 200:
            verify_rest_response(answer, endpoint)  # raises what the server says
        return answer

    def call(self, method: str, endpoint: str, **named: Any) -> str:
        """What the server answers at an address that MLflow's client has no method for. Raises Rejected, Unreachable."""
        return str(self._ask(self._http, method, endpoint, **named).text)

    def history(self, run_id: str, key: str) -> list[tuple[int, float]]:
        """Every point of a metric as (time in ms, value), as MLflow orders them; none where there is no such metric."""
        return [
            (point.timestamp, point.value)
            for point in self._ask(self._client.get_metric_history, run_id, key)
        ]

    def points(self, run_id: str, key: str) -> list[Point]:
        """Every logged point of a metric."""
        found = self._ask(self._client.get_metric_history, run_id, key)
        return [Point(key, point.value, point.step, point.timestamp) for point in found]

    def datasets(self, run_id: str, origin: str) -> list[DatasetUsed]:
        """The data sets of a run, as records of `origin`."""
        found = []
        inputs = self._ask(self._client.get_run, run_id).inputs
        for one in inputs.dataset_inputs if inputs else []:
            contexts = [tag.value for tag in one.tags if tag.key == "mlflow.data.context"]
            data = one.dataset
            texts = (data.name, data.digest, data.source, data.schema or "", data.profile or "")
            found.append(DatasetUsed(origin, *texts, (contexts or ["training"])[0]))
        return found

    def download(self, run_id: str, folder: Path) -> list[str]:
        """All artifacts of a run to folder/run_id; their paths there."""
        if not self._ask(self._client.list_artifacts, run_id):
            return []
        target = folder / run_id
        target.mkdir(parents=True, exist_ok=True)
        self._ask(self._client.download_artifacts, run_id, "", str(target))
        return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())

    def file(self, run_id: str, path: str, folder: Path) -> Path | None:
        """Downloads an artifact to folder/run_id/path; None if the run has no such file. May be called from several threads."""
        target = folder / run_id / path
        try:
            if not self.uri.startswith("http"):
                if not self.has_file(run_id, path):
                    return None
                target.parent.mkdir(parents=True, exist_ok=True)
                return Path(
                    self._ask(self._client.download_artifacts, run_id, path, str(folder / run_id))
                )
            # MLflow's own download asks three times as often.
            answer = self._ask(
                self._http, "GET", "/get-artifact", params={"run_id": run_id, "path": path}
            )
        except Rejected:
            return None
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(answer.content)
        return target

    def has_file(self, run_id: str, path: str) -> bool:
        """Whether a run has an artifact of that path."""
        beside = self._ask(self._client.list_artifacts, run_id, path.rpartition("/")[0] or None)
        return any(one.path == path and not one.is_dir for one in beside)

    def delete_files(self, run_id: str) -> None:
        """Deletes every artifact of a run for good."""
        where = self._ask(self._client.get_run, run_id).info.artifact_uri
        repository = get_artifact_repository(where, tracking_uri=self.uri)
        for one in self._ask(self._client.list_artifacts, run_id):
            self._ask(repository.delete_artifacts, one.path)

    def run(self, run_id: str) -> StoredRun | None:
        try:
            return stored_run(self._ask(self._client.get_run, run_id))
        except Rejected:
            return None

    def children(self, run_id: str, experiment: str) -> Iterator[StoredRun]:
        """The cell runs of a campaign."""
        return self.runs(experiment, f"tags.campaign = '{run_id}'")

    def close_stale(self, experiment: str) -> list[str]:
        """Ends runs on which nobody works any more (kill -9, power loss) as KILLED, with their reason. Returns their ids."""
        running = [
            run for run in self.runs(experiment, "attributes.status = 'RUNNING'") if _is_ours(run)
        ]
        owners = {run.tags.get("campaign", run.run_id) for run in running}
        fresh = {
            owner
            for owner in owners
            if (run := self.run(owner)) and run.status == "RUNNING" and _is_fresh(run)
        }
        closed = []
        for run in running:
            if run.tags.get("campaign", run.run_id) in fresh:
                continue
            now_ms = max(
                run.start_ms, int(time.time() * 1_000)
            )  # its machine's clock may have been ahead of this one
            self._end(run.run_id, RunClosed(run.run_id, now_ms, RunOutcome.INTERRUPTED, VANISHED))
            closed.append(run.run_id)
        return closed

    def at_work(self, experiments: Sequence[str]) -> list[StoredRun]:
        """Campaigns and searches on which somebody still works."""
        running = self.runs(experiments, "attributes.status = 'RUNNING'")
        return [
            run
            for run in running
            if run.tags.get("kind") in (RunKind.CAMPAIGN, RunKind.SWEEP) and _is_fresh(run)
        ]

    def page(self, experiment: str, run_id: str) -> str:
        """Where a browser finds a run: an address, or the command that opens the UI first."""
        place = self.link(experiment, run_id)
        if self.uri.startswith("http"):
            return f"{self.uri}/{place}"
        return (
            f"mlflow ui --backend-store-uri {self.uri}   then open   http://127.0.0.1:5000/{place}"
        )

    def link(self, experiment: str, run_id: str) -> str:
        """A run's address in the UI, below the server's."""
        return f"#/experiments/{self.experiment_id(experiment)}/runs/{run_id}?{MODEL_TRAINING}"

    def address(self, run_id: str) -> str:
        """Where a browser finds a run by its id alone; empty where the UI has no address. Never with a password."""
        parts = urlsplit(self.uri)
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        return f"{place}/#/runs/{run_id}" if parts.scheme.startswith("http") else ""

    def list_of(self, experiment: str, run_id: str) -> str:
        """The UI's address, below the server's, of a campaign's runs in one list."""
        condition = quote(f"tags.campaign = '{run_id}'")
        return f"#/experiments/{self.experiment_id(experiment)}/runs?searchFilter={condition}&{MODEL_TRAINING}"

    def _ask(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The answer to a call that may be made twice, and is where nothing answers at first."""
        return _again(lambda: self._ask_once(call, *arguments, **named))

    def _ask_once(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The answer to a call; every way that MLflow fails becomes Unreachable or Rejected."""
        try:
            return call(*arguments, **named)
        except MlflowException as error:
            text = _one_line(error).removeprefix("INVALID_PARAMETER_VALUE: ")
            raise _meaning(error, text)(text[:300]) from error
        except requests.HTTPError as error:
            text = _one_line(error)[:300]
            status = error.response.status_code if error.response is not None else 500
            raise (Rejected if 400 <= status < 500 and status not in (408, 429) else Unreachable)(
                text
            ) from error
        except (requests.RequestException, OSError) as error:
            raise Unreachable(_one_line(error)[:300]) from error
        except (
            ValueError,
            TypeError,
        ) as error:  # MLflow's client could not write the request, or not read the answer
            raise Unwritten(_one_line(error)[:300]) from error


def _one_line(error: Exception) -> str:
    return plain.line(" ".join(str(error).split()))


def _meaning(error: MlflowException, text: str) -> type[EvenhandError]:
    """A server says BAD_REQUEST of whatever its database answers (a standby that takes no writes), INTERNAL_ERROR of all else."""
    if "failed with exception" in text:
        return Unreachable
    if error.error_code in ("BAD_REQUEST", "INTERNAL_ERROR"):
        return Unwritten
    return Rejected if error.get_http_status_code() in (400, 403, 404, 409) else Unreachable


def _again(call: Callable[[], Any]) -> Any:
    """What a call answers, at its second try if nothing answers the first."""
    try:
        return call()
    except Unreachable:
        time.sleep(AGAIN_SECONDS)
        return call()


def _below(folder: Path, path: str) -> Path:
    """A file or folder of a journal's. Raises Rejected where it, or a link in it, is none or leads out."""
    root, found = folder.resolve(), folder / path
    try:
        inside = [found, *found.rglob("*")] if found.is_dir() else [found]
        for one in inside:
            if not one.resolve().is_relative_to(root):
                raise Rejected(f"{str(one)!a} leads out of the journal's folder")
            if not (one.is_file() or one.is_dir()):
                raise Rejected(f"{str(one)!a} is missing, or is no file")
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # no permission, a NUL in the name, a loop of links
        raise Rejected(f"{ascii(path)[:200]} cannot be read: {error}") from None
    return found


def _check_model(record: ModelSaved) -> None:
    """A model's users import its loader and install its packages: the one must be ours, the others have a name and a version."""
    source = ROOT / f"{record.loader.replace('.', '/')}.py"
    if not (
        LOADER.fullmatch(record.loader)
        and source.is_file()
        and "def _load_pyfunc(" in source.read_text(encoding="utf-8")
    ):
        raise Rejected(f"{ascii(record.loader)[:100]} is no loader of evenhand's")
    for one in record.requirements:
        if not REQUIREMENT.fullmatch(one):
            raise Rejected(f"{ascii(one)[:100]} is no requirement NAME==VERSION")


def _save_model(path: Path, model: Model, record: ModelSaved, data: Path) -> None:
    import pandas as pd

    code = path.with_name("code")
    package = bundle.write(code)
    sent = [ColSpec(kind, name, required=False) for name, kind in record.columns.items()]
    sent = sent or [ColSpec("string", name) for name in record.example]
    answer = [
        ColSpec(kind, name) for name, kind in (record.outputs or {record.output: "string"}).items()
    ]
    example = {
        name: base64.b64decode(text) if record.columns.get(name) == "binary" else text
        for name, text in record.example.items()
    }
    mlflow.pyfunc.save_model(
        path=str(path),
        mlflow_model=model,
        loader_module=f"{package}.{record.loader}",
        data_path=str(data),
        code_paths=[str(code / package)],
        signature=ModelSignature(inputs=Schema(sent), outputs=Schema(answer)),
        input_example=pd.DataFrame([example]),
        pip_requirements=list(record.requirements),
    )


def source(entry_point: str, commit: str) -> dict[str, str]:
    """The tags behind the UI's columns `Created by` and `Source`."""
    who = {
        "mlflow.user": _user(),
        "mlflow.source.name": f"evenhand {entry_point}",
        "mlflow.source.type": "PROJECT",
    }
    return {**who, **({"mlflow.source.git.commit": commit.partition("+")[0]} if commit else {})}


def named(name: str) -> dict[str, str]:
    """The tag that the UI shows as a run's name."""
    return {MLFLOW_RUN_NAME: name}


def note(text: str) -> dict[str, str]:
    """The tag that the UI shows as a run's description (Markdown)."""
    return {NOTE: text[:7_900]}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())


def schema(columns: Mapping[str, str]) -> str:
    """MLflow's JSON of a dataset's columns, for the UI."""
    return json.dumps(
        {
            "mlflow_colspec": [
                {"type": kind, "name": name, "required": True} for name, kind in columns.items()
            ]
        }
    )


def _is_ours(run: StoredRun) -> bool:
    """Killed right after its creation, a run has an origin and no kind yet."""
    return run.tags["kind"] in set(RunKind) if "kind" in run.tags else "origin" in run.tags


def _is_fresh(run: StoredRun) -> bool:
    return whereabouts.is_fresh(run.tags, run.start_ms / 1_000)


def stored_run(run: Any) -> StoredRun:
    """Return a run of MLflow's client with every tag by its own name."""
    info, data = run.info, run.data
    return StoredRun(
        *(info.run_id, info.run_name, info.status, info.start_time, info.end_time),
        *(data.params, data.metrics, technical.unpacked(data.tags)),
    )


def _from_json(run: Mapping[str, Any]) -> StoredRun:
    """A run as the REST API tells it: numbers that JSON does not know are text there, and what is empty may be absent."""
    info, data = run["info"], run.get("data", {})
    params, tags = (
        {one["key"]: one.get("value", "") for one in data.get(kind, ())}
        for kind in ("params", "tags")
    )
    metrics = {one["key"]: float(one.get("value", 0.0)) for one in data.get("metrics", ())}
    end_ms = info.get("end_time") or None
    return StoredRun(
        *(
            info["run_id"],
            info.get("run_name", ""),
            info["status"],
            info.get("start_time", 0),
            end_ms,
        ),
        *(params, metrics, technical.unpacked(tags)),
    )


def _chunks(entries: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (entries[i : i + size] for i in range(0, len(entries), size))
