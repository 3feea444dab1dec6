"""The only module that reaches into MLflow's server: its application, its messages (protobuf), accounts, owners."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cachetools import TTLCache
from google.protobuf.json_format import Error, MessageToDict
from google.protobuf.message import Message

from deploy import readiness
from deploy.guard.refusal import Refusal
from deploy.guard.routes import Route, line

# MLflow reads these when it is imported.
os.environ["_MLFLOW_SGI_NAME"] = "uvicorn"
os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# What has no rule of its own is denied by MLflow too.
os.environ["MLFLOW_BASIC_AUTH_FAIL_CLOSED"] = "true"
os.environ["MLFLOW_ENABLE_WORKSPACES"] = "false"

from fastapi.routing import iter_route_contexts
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.service_pb2 import SearchDatasets
from mlflow.server import ARTIFACTS_DESTINATION_ENV_VAR, auth, constants, handlers
from mlflow.server import app as flask_app
from mlflow.utils.proto_json_utils import parse_dict
from mlflow.utils.workspace_utils import DEFAULT_WORKSPACE_NAME
from sqlalchemy import text
from starlette.routing import Mount
from werkzeug.security import check_password_hash, generate_password_hash

BACKEND, ARTIFACTS = "MLFLOW_BACKEND_STORE_URI", ARTIFACTS_DESTINATION_ENV_VAR
# Where MLflow puts the runs of those who name no experiment.
DEFAULT_EXPERIMENT = "0"
PERSONAL_ROLE = "__user_"
MANAGE = "MANAGE"
OWN_PLACE = "mlflow-artifacts:/"
# Of a route that no service of MLflow's lists.
SEARCH_DATASETS = "POST {api}/2.0/mlflow/experiments/search-datasets"
# Log-ins of which one is remembered after its minute in MLflow's cache, for as long as it is used.
REMEMBERED, REMEMBERED_SECONDS = 10_000, 86_400
LOGINS = "evenhand_logins"
LOG_CONFIG = Path(handlers.__file__).with_name("uvicorn_log_config.yaml")


@dataclass(frozen=True)
class Account:
    """Who is asking, by a name and a password that were right."""

    user: str
    id: int
    is_admin: bool


def prepare(artifacts: str) -> None:
    """Databases and administrator made, once, before the first worker. artifacts: folder or s3:// address."""
    backend = os.environ[BACKEND]
    os.environ[constants.BACKEND_STORE_URI_ENV_VAR] = os.environ[
        constants.REGISTRY_STORE_URI_ENV_VAR
    ] = backend
    os.environ[constants.ARTIFACT_ROOT_ENV_VAR] = OWN_PLACE
    os.environ[constants.ARTIFACTS_DESTINATION_ENV_VAR] = artifacts
    os.environ[constants.SERVE_ARTIFACTS_ENV_VAR] = "true"
    handlers.initialize_backend_stores(backend, backend, OWN_PLACE)
    auth.bootstrap_admin_user()
    with auth.store.engine.begin() as connection:
        columns = "pair VARCHAR(64) PRIMARY KEY, day INTEGER NOT NULL"
        connection.execute(text(f"CREATE TABLE IF NOT EXISTS {LOGINS} ({columns})"))
        connection.execute(text(readiness.CREATE))


def application() -> Any:
    """MLflow's own application with names and passwords."""
    return auth.create_app()


def offered(application: Any) -> Iterator[str]:
    """Every route that MLflow has, as `routes.toml` writes it."""
    for rule in flask_app.url_map.iter_rules():
        yield from (line(method, rule.rule) for method in rule.methods - {"HEAD", "OPTIONS"})
    native = [route for route in application.routes if not isinstance(route, Mount)]
    for route in iter_route_contexts(native):
        path = re.sub(r"\{(\w+):path\}", r"<path:\1>", route.path or "")
        path = path.replace("{", "<").replace("}", ">")
        yield from (line(method, path) for method in (route.methods or set()) - {"HEAD", "OPTIONS"})


def message_of_body(route: Route, sent: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of the message that MLflow's handler reads from an object, by their own names.

    None where its handler reads the object itself. Raises Refusal for what is no such message: MLflow
    would go on with those fields that it had read so far.
    """
    kind = _messages().get(f"{route.method} {route.rule}")
    return _fields(kind, sent) if kind else None


def message_of_query(route: Route, entries: Iterable[tuple[str, str]]) -> dict[str, Any] | None:
    """Return the same for a query, whose names MLflow looks up as they are."""
    kind = _messages().get(f"{route.method} {route.rule}")
    if kind is None:
        return None
    fields = {
        field.name: field for field in kind.DESCRIPTOR.fields
    }  # fields_by_name stops at a NUL
    sent = dict[str, Any]()
    for name, value in entries:
        field = fields.get(name)
        if field is not None and field.is_repeated:
            sent.setdefault(name, []).append(value)
        elif field is not None:
            is_flag = field.type == field.TYPE_BOOL and value.lower() in ("true", "false")
            sent.setdefault(name, value.lower() == "true" if is_flag else value)
    return _fields(kind, sent)


def _fields(kind: type[Message], sent: Mapping[str, Any]) -> dict[str, Any]:
    message, form = kind(), {"preserving_proto_field_name": True, "unquote_int64_if_possible": True}
    try:
        parse_dict(sent, message)
        fields: dict[str, Any] = MessageToDict(message, **form)
    except OverflowError:
        raise Refusal(400, "a number is larger than any float64; write at most 1.8e308") from None
    except Error as error:
        reason = ascii(str(error).strip("."))[1:-1]
        raise Refusal(400, f"the request is no {kind.DESCRIPTOR.name}: {reason[:300]}") from None
    return fields


@lru_cache(1)
def _messages() -> dict[str, type[Message]]:
    """Return the class of the message that each route's handler parses, by method and rule."""
    listed = handlers.get_endpoints(lambda request: request)
    messages: dict[str, type[Message]] = {SEARCH_DATASETS: SearchDatasets}
    for path, request, methods in listed:
        if isinstance(request, type):  # the others are functions, which parse no message
            messages |= {line(method, path): request for method in methods}
    return messages


def known(user: str, password: str) -> Account | None:
    """The account whose password was right a minute ago or less; no hashing, no database."""
    with auth._USER_AUTH_CACHE_LOCK:
        found = auth._USER_AUTH_CACHE.get(auth._auth_cache_key(user, password))
    return _account(found) if found else None


def verified(user: str, password: str) -> Account | None:
    """The account of a name and a password, None if they are wrong: as slow for a name that nobody has as for any other."""
    found = auth._authenticate_cached(user, password)
    if found:
        with auth._USER_AUTH_CACHE_LOCK:
            _remembered[auth._auth_cache_key(user, password)] = found
        return _account(found)
    if not auth.store.has_user(user):
        check_password_hash(_nobodys_password(), password)
    return None


_remembered: TTLCache[tuple[str, bytes], Any] = TTLCache(REMEMBERED, REMEMBERED_SECONDS)


def is_remembered(user: str, password: str) -> bool:
    """Whether a name and a password were right before; no database."""
    with auth._USER_AUTH_CACHE_LOCK:
        return auth._auth_cache_key(user, password) in _remembered


def renewed(user: str, password: str) -> Account | None:
    """Give a log-in that was right another minute if the database has the same hash; no hashing."""
    if found := known(user, password):
        return found
    key, now = auth._auth_cache_key(user, password), None
    with suppress(LookupError), _what_there_is():
        now = auth.store.get_user(user)
    with auth._USER_AUTH_CACHE_LOCK:
        before = _remembered.pop(key, None)
        if not (before and now) or (before.id, before.password_hash) != (now.id, now.password_hash):
            return None
        auth._USER_AUTH_CACHE[key] = _remembered[key] = now
    return _account(now)


def logins_after(day: int) -> dict[str, int]:
    """Return the pairs of `add_login` that are newer than a day, each with its own."""
    with auth.store.engine.connect() as connection:
        newer = text(f"SELECT pair, day FROM {LOGINS} WHERE day > :day")
        return {pair: int(last) for pair, last in connection.execute(newer, {"day": day})}


def add_login(pair: str, day: int, oldest: int) -> None:
    """Record that a pair of name and address logged in, and delete those up to the oldest day."""
    on_conflict = "ON CONFLICT (pair) DO UPDATE SET day = :day"
    upsert = f"INSERT INTO {LOGINS} VALUES (:pair, :day) {on_conflict}"
    with auth.store.engine.begin() as connection:
        connection.execute(text(f"DELETE FROM {LOGINS} WHERE day <= :day"), {"day": oldest})
        connection.execute(text(upsert), {"pair": pair, "day": day})


def teams(account: Account) -> frozenset[str]:
    """Names of the teams an account belongs to."""
    roles = auth.store.list_user_roles(account.id)
    return frozenset(role.name for role in roles if not role.name.startswith(PERSONAL_ROLE))


def may_write(account: Account, experiment: str) -> bool:
    """Return whether a role of the account permits changes in an experiment."""
    asked = (account.id, "experiment", experiment, DEFAULT_WORKSPACE_NAME)
    permission = auth.store.get_role_permission_for_resource(*asked)
    return permission is not None and bool(permission.can_update)


@lru_cache(100_000)
def home_of_run(run: str) -> tuple[str, str]:
    """Return the experiment of a run, and where its files lie. Raises LookupError."""
    with _what_there_is():
        info = _client().get_run(run).info
    return str(info.experiment_id), str(info.artifact_uri)


@lru_cache(100_000)
def home_of_model(model: str) -> tuple[str, str]:
    """Return the experiment of a logged model, and where its files lie. Raises LookupError."""
    with _what_there_is():
        found = _client().get_logged_model(model)
    return str(found.experiment_id), str(found.artifact_location)


def place(uri: str) -> str:
    """Return where files lie below the server's artifacts. Raises LookupError."""
    if not uri.startswith(OWN_PLACE):
        raise LookupError(uri)
    return uri.removeprefix(OWN_PLACE).strip("/")


@lru_cache(1)
def _client() -> MlflowClient:
    """Return a client of the database, which has the engine that MLflow's handlers use."""
    return MlflowClient(os.environ[BACKEND])


def hand_over(account: Account, what: str, pattern: str, team: str) -> None:
    """What an account has made is its team's: MLflow gives it to the maker alone. what: experiment, registered_model."""
    with suppress(LookupError), _what_there_is():  # it may have been handed over already
        auth.store.revoke_user_resource_permission(account.user, what, pattern)
    (role,) = (role for role in auth.store.list_user_roles(account.id) if role.name == team)
    if (what, pattern) not in {
        (one.resource_type, one.resource_pattern) for one in role.permissions
    }:
        auth.store.add_role_permission(role.id, what, pattern, MANAGE)


def check_upload(path: str) -> None:
    """Raise Refusal for a file where a folder lies, or below a file. An object store has no folders."""
    root = os.environ[ARTIFACTS]
    if "://" in root:
        return
    place = Path(root, path)
    if path.endswith("/") or place.is_dir():
        raise Refusal(400, f"{path} is a folder; name the file in it")
    for above in place.relative_to(root).parents:
        if Path(root, above).is_file():
            raise Refusal(400, f"{above} is a file; no file lies below it")


@contextmanager
def _what_there_is() -> Iterator[None]:
    """A database that does not answer is no reason to let a request through."""
    try:
        yield
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise LookupError(str(error)) from error
        raise


@lru_cache(1)
def _nobodys_password() -> str:
    return str(generate_password_hash(secrets.token_urlsafe()))


def _account(user: Any) -> Account:
    return Account(user.username, user.id, user.is_admin)
