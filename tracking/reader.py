"""Runs, metrics and files of a tracking server or store, and errors of its answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import requests
from mlflow.exceptions import MlflowException
from mlflow.utils import get_results_from_paginated_fn
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.rest_utils import http_request, verify_rest_response

from tracking import first_use, mlflow_defaults, plain, technical
from tracking.errors import ErrorCode, EvenhandError, UsageError, suggestion
from tracking.records import Point, RunKind, StoredRun
from tracking.whereabouts import is_fresh

mlflow_defaults.redirect_logs()
NEWEST_FIRST = "attributes.start_time DESC"
PAGE_SECONDS = 120  # a page of full runs takes a server seconds, longer with several readers
AGAIN_SECONDS = 1.0


class Unreachable(EvenhandError):
    """The server did not answer, or could not write; the same call may succeed later."""


class Unwritten(Unreachable):
    """The server failed without a reason: it cannot write now, or can never write this record."""


class Rejected(EvenhandError):
    """The server does not accept a record; trying again will not help."""


class Reader:
    """Tracking server, or file, that has runs. Each method may raise Unreachable."""

    def __init__(self, uri: str | None = None, *, to_read: bool = False) -> None:
        """Open the store at `uri`, or at MLFLOW_TRACKING_URI.

        Args:
            to_read: An SQLite store has to exist already.

        Raises:
            UsageError: It does not exist, no file can hold it, or MLflow cannot use it.
        """
        if uri:
            mlflow.set_tracking_uri(uri)
        self.uri = str(mlflow.get_tracking_uri())
        self._is_remote = self.uri.startswith(("http://", "https://"))
        try:
            with first_use.lock_first_use(self.uri, to_read=to_read):
                self._client = mlflow.MlflowClient(self.uri)
        except (MlflowException, ImportError) as error:  # a folder; a database without its driver
            raise UsageError(
                ErrorCode.UNREACHABLE,
                f"tracking store {self.uri} cannot be used: {_one_line(error)[:120]}; set "
                "MLFLOW_TRACKING_URI to a server's address, or to a file such as "
                "sqlite:///mlflow.db",
            ) from None

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
    def absolute_uri(self) -> str:
        """Address that is the same store in any folder."""
        if self.uri.startswith("sqlite:///") and not self.uri.startswith("sqlite:////"):
            return f"sqlite:///{Path(self.uri.removeprefix('sqlite:///')).resolve()}"
        return self.uri if ":" in self.uri else str(Path(self.uri).resolve())

    def experiment_names(self) -> dict[str, str]:
        """Return the names of all experiments that the account may read, by id."""
        experiments = get_results_from_paginated_fn(
            lambda size, token: self._ask(
                self._client.search_experiments, max_results=size, page_token=token
            ),
            max_results_per_page=1_000,
        )
        return {str(experiment.experiment_id): experiment.name for experiment in experiments}

    def experiment_name(self, run_id: str) -> str:
        """Return the name of a run's experiment.

        Raises:
            Rejected: There is no such run, or the account may not read it.
        """
        run = self._ask(self._client.get_run, run_id)
        return str(self._ask(self._client.get_experiment, run.info.experiment_id).name)

    def experiment_ids(self, names: Sequence[str]) -> list[str]:
        """Return the ids of experiments. Raises UsageError for one that does not exist."""
        ids = {name: self._active_experiment(name) for name in names}
        missing = next((name for name, experiment_id in ids.items() if not experiment_id), None)
        if missing is None:
            return list(ids.values())
        existing = suggestion(missing, sorted(self.experiment_names().values()))
        raise UsageError(
            ErrorCode.UNKNOWN_NAME,
            f"no experiment '{missing}' on {self.uri}; call it in the folder of your campaigns, "
            f"or set MLFLOW_TRACKING_URI to where they are{existing}",
        )

    def _active_experiment(self, name: str) -> str:
        """Return the id of an experiment, empty if there is none or it is deleted."""
        experiment = self._ask(self._client.get_experiment_by_name, name)
        is_active = experiment and experiment.lifecycle_stage == "active"
        return str(experiment.experiment_id) if is_active else ""

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
        for runs in self._pages(ids, condition, page):
            # a run that begins in between moves the others to later pages
            new = [run for run in runs if run.run_id not in seen]
            seen.update(run.run_id for run in new)
            if progress:
                progress(len(seen), None)
            yield from new

    def tagged(self, key: str, value: str) -> list[StoredRun]:
        """Return the runs of all experiments with a tag of this value, the newest first."""
        pages = self._pages(list(self.experiment_names()), f"tags.`{key}` = '{value}'")
        return [run for page in pages for run in page]

    def _pages(
        self, ids: Sequence[str], condition: str, size: int = 500
    ) -> Iterator[list[StoredRun]]:
        """Yield runs, while the next page is fetched."""
        with ThreadPoolExecutor(1) as background:
            ahead = background.submit(self._page, ids, condition, size, "") if ids else None
            while ahead:
                runs, token = ahead.result()
                ahead = (
                    background.submit(self._page, ids, condition, size, token) if token else None
                )
                yield runs

    def _page(
        self, ids: Sequence[str], condition: str, size: int, token: str
    ) -> tuple[list[StoredRun], str | None]:
        """Return some runs, and the token of the next page, none after the last."""
        options = {"max_results": size, "page_token": token, "order_by": [NEWEST_FIRST]}
        if not self._is_remote:
            runs = self._ask(self._client.search_runs, ids, condition, **options)
            return [stored_run(run) for run in runs], runs.token or None
        query = {"experiment_ids": ids, "filter": condition, **options}
        search = "/api/2.0/mlflow/runs/search"
        answer = self._ask(
            lambda: self._http("POST", search, json=query, timeout=PAGE_SECONDS).json()
        )
        return [_from_json(run) for run in answer.get("runs", ())], answer.get("next_page_token")

    def _http(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        """Return an answer as it came: MLflow's client takes ten times as long to parse it."""
        credentials = get_default_host_creds(self.uri)
        answer = http_request(credentials, endpoint, method, **options)
        verified: requests.Response = verify_rest_response(answer, endpoint)
        return verified

    def call(self, method: str, endpoint: str, **values: Any) -> dict[str, Any]:
        """Call an address that MLflow's client has no method for.

        Args:
            method: HTTP method. GET sends the values in the query, all others as JSON.
            endpoint: Path of the address, from the server's root.
            values: Arguments of the endpoint.

        Returns:
            The answer's JSON; empty if it has no body.

        Raises:
            Rejected: The server does not accept the request.
        """
        values = {"params" if method == "GET" else "json": values}
        answer = self._ask(self._http, method, endpoint, **values)
        return dict(answer.json()) if answer.text else {}

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

    def active_runs(self, experiments: Sequence[str]) -> list[StoredRun]:
        """Return the campaigns and searches whose process is alive."""
        running = self.runs(experiments, "attributes.status = 'RUNNING'")
        kinds = (RunKind.CAMPAIGN, RunKind.SWEEP)
        return [run for run in running if run.tags.get("kind") in kinds and is_fresh(run)]

    def _ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return the answer to a call, which is made twice if nothing answers at first."""
        return again(lambda: self._ask_once(call, *arguments, **options))

    def _ask_once(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return the answer to a call; each error of MLflow becomes Unreachable or Rejected."""
        try:
            return call(*arguments, **options)
        except MlflowException as error:
            raise _error(error) from error
        except requests.HTTPError as error:
            status = error.response.status_code if error.response is not None else 500
            if 400 <= status < 500 and status not in (408, 429):
                raise Rejected(ErrorCode.DENIED, _one_line(error)) from error
            raise Unreachable(ErrorCode.UNREACHABLE, _one_line(error)) from error
        except (requests.RequestException, OSError) as error:
            raise Unreachable(ErrorCode.UNREACHABLE, _one_line(error)) from error
        except (ValueError, TypeError) as error:  # the client cannot read a request or an answer
            raise Unwritten(ErrorCode.UNREACHABLE, _one_line(error)) from error


def _error(error: MlflowException) -> EvenhandError:
    text = _one_line(error).removeprefix("INVALID_PARAMETER_VALUE: ")
    # BAD_REQUEST is any error of the database, such as of a standby that takes no writes
    is_failure = error.error_code in ("BAD_REQUEST", "INTERNAL_ERROR")
    if is_failure and "failed with exception" not in text:
        return Unwritten(ErrorCode.UNREACHABLE, text)
    if not is_failure and error.get_http_status_code() in (400, 403, 404, 409):
        return Rejected(ErrorCode.DENIED, text)
    return Unreachable(ErrorCode.UNREACHABLE, text)


def _one_line(error: Exception) -> str:
    return plain.line(" ".join(str(error).split()))[:300]


def again(call: Callable[[], Any]) -> Any:
    """Return the answer to a call, at its second try if nothing answers the first.

    MLflow's own tries would repeat a creation whose answer was lost, without a search for it.
    """
    try:
        return call()
    except Unreachable:
        time.sleep(AGAIN_SECONDS)
        return call()


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
