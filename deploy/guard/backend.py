"""MLflow's server: its application, messages, accounts and owners. No other module reaches in."""

from __future__ import annotations

import base64
import hmac
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from cachetools import TTLCache
from google.protobuf.json_format import Error, MessageToDict
from google.protobuf.message import Message

from deploy import readiness
from deploy.guard import names
from deploy.guard.refusal import Reason, Refusal
from deploy.guard.routes import Route, line, listed_fields

# MLflow reads these when it is imported.
os.environ["_MLFLOW_SGI_NAME"] = "uvicorn"
os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# MLflow, too, denies a route that has no rule.
os.environ["MLFLOW_BASIC_AUTH_FAIL_CLOSED"] = "true"
os.environ["MLFLOW_ENABLE_WORKSPACES"] = "false"

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST
from mlflow.protos.service_pb2 import SearchDatasets
from mlflow.server import ARTIFACTS_DESTINATION_ENV_VAR, auth, constants, handlers
from mlflow.server.auth.config import DEFAULT_AUTHORIZATION_FUNCTION
from mlflow.server.auth.entities import User
from mlflow.server.auth.sqlalchemy_store import RoleGrantRow
from mlflow.store.model_registry.dbmodels.models import SqlRegisteredModel
from mlflow.store.tracking.dbmodels.models import SqlExperiment
from mlflow.utils.proto_json_utils import parse_dict
from mlflow.utils.workspace_utils import DEFAULT_WORKSPACE_NAME
from sqlalchemy import String, bindparam, cast, make_url, or_, select, text
from werkzeug.security import check_password_hash, generate_password_hash

Account: TypeAlias = User  # whose name and password were right
BACKEND, ARTIFACTS = "MLFLOW_BACKEND_STORE_URI", ARTIFACTS_DESTINATION_ENV_VAR
# MLflow puts runs here that name no experiment.
DEFAULT_EXPERIMENT = "0"
PERSONAL_ROLE = "__user_"
MANAGE = "MANAGE"
ARTIFACT_SCHEME = "mlflow-artifacts:/"
# Route that no service of MLflow's lists.
SEARCH_DATASETS = "POST {api}/2.0/mlflow/experiments/search-datasets"
# Log-ins that are remembered after their minute in MLflow's cache, while they are used.
REMEMBERED, REMEMBERED_SECONDS = 10_000, 86_400
LOGINS = "evenhand_logins"
# For each id that explicit grants name, when the thing was made that they are for.
GRANTS = "evenhand_grants"
TOO_LARGE_NUMBER = "a number is larger than any float64; write at most 1.8e308"
# Things that grants name: id, name, time of creation, and the form of the name.
THINGS: dict[str, tuple[Any, Any, Any, names.Grammar]] = {
    "experiment": (
        cast(SqlExperiment.experiment_id, String),
        SqlExperiment.name,
        SqlExperiment.creation_time,
        names.EXPERIMENT,
    ),
    "registered_model": (
        SqlRegisteredModel.name,
        SqlRegisteredModel.name,
        SqlRegisteredModel.creation_time,
        names.MODEL,
    ),
}


def check_settings(longest_cache_seconds: int) -> None:
    """Raise ValueError for a setting of MLflow's accounts that the guard's promises exclude."""
    settings = auth.auth_config
    right = {
        "default_permission": "READ",
        "authorization_function": DEFAULT_AUTHORIZATION_FUNCTION,
        "grant_default_workspace_access": False,
        "read_database_uri": None,
    }
    for name, value in right.items():
        if getattr(settings, name) != value:
            raise ValueError(f"{name} is {getattr(settings, name)}; write {value}")
    if not 1 <= settings.auth_cache_ttl_seconds <= longest_cache_seconds:
        seconds = f"1 to {longest_cache_seconds}"
        raise ValueError(f"auth_cache_ttl_seconds is {settings.auth_cache_ttl_seconds}: {seconds}")


def files() -> list[str]:
    """Return the files of the server that are no artifacts: settings, databases of SQLite."""
    urls = map(make_url, (os.environ[BACKEND], auth.auth_config.database_uri))
    databases = [url.database for url in urls if url.get_backend_name() == "sqlite"]
    paths = [path.removeprefix("file:") for path in databases if path]
    return [os.environ["MLFLOW_AUTH_CONFIG_PATH"], *paths]


def prepare(artifacts: str) -> None:
    """Make tables and administrator, once, before the first worker.

    Args:
        artifacts: Folder or s3:// address.
    """
    backend = os.environ[BACKEND]
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: backend,
        constants.REGISTRY_STORE_URI_ENV_VAR: backend,
        constants.ARTIFACT_ROOT_ENV_VAR: ARTIFACT_SCHEME,
        constants.ARTIFACTS_DESTINATION_ENV_VAR: artifacts,
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
    }
    handlers.initialize_backend_stores(backend, backend, ARTIFACT_SCHEME)
    auth.bootstrap_admin_user()
    with auth.store.engine.begin() as connection:
        columns = "pair VARCHAR(64) PRIMARY KEY, day INTEGER NOT NULL"
        connection.execute(text(f"CREATE TABLE IF NOT EXISTS {LOGINS} ({columns})"))
        columns = "kind VARCHAR(64), id VARCHAR(255), created BIGINT, PRIMARY KEY (kind, id)"
        connection.execute(text(f"CREATE TABLE IF NOT EXISTS {GRANTS} ({columns})"))
    with handlers._get_tracking_store().engine.begin() as connection:  # accounts may lie elsewhere
        connection.execute(text(readiness.CREATE))


application = auth.create_app  # MLflow's own, with names and passwords


def message_of_body(route: Route, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of the message that MLflow's handler reads from a body.

    Returns None if the handler reads the object itself.

    Raises:
        Refusal: It is no such message; MLflow would use the fields before the wrong one.
    """
    kind = messages().get(f"{route.method} {route.rule}")
    return _fields(kind, body) if kind else None


def message_of_query(route: Route, entries: Iterable[tuple[str, str]]) -> dict[str, Any] | None:
    """Return the same for a query, whose names MLflow looks up as they are."""
    kind = messages().get(f"{route.method} {route.rule}")
    if kind is None:
        return None
    fields = {field.name: field for field in kind.DESCRIPTOR.fields}  # fields_by_name stops at NUL
    values = dict[str, Any]()
    for name, value in entries:
        field = fields.get(name)
        if field is not None and field.is_repeated:
            values.setdefault(name, []).append(value)
        elif field is not None:
            is_flag = field.type == field.TYPE_BOOL and value.lower() in ("true", "false")
            values.setdefault(name, value.lower() == "true" if is_flag else value)
    return _fields(kind, values)


def _fields(kind: type[Message], values: Mapping[str, Any]) -> dict[str, Any]:
    message = kind()
    options = {"preserving_proto_field_name": True, "unquote_int64_if_possible": True}
    try:
        parse_dict(values, message)
        _check_fields(message)
        fields: dict[str, Any] = MessageToDict(message, **options)
    except OverflowError:
        raise Refusal(Reason.INVALID, TOO_LARGE_NUMBER) from None
    except Error as error:
        reason = ascii(str(error).strip("."))[1:-1][:300]
        raise Refusal(
            Reason.INVALID, f"the request is no {kind.DESCRIPTOR.name}: {reason}"
        ) from None
    return fields


def _check_fields(message: Message) -> None:
    """Raise Refusal for a field that is not listed: it may name a thing in a way not checked."""
    listed = listed_fields().get(message.DESCRIPTOR.full_name, frozenset())
    for field, value in message.ListFields():
        if field.name not in listed:
            raise Refusal(
                Reason.NOT_OFFERED,
                f"this server does not offer {field.name} of {message.DESCRIPTOR.name}",
            )
        if field.message_type:
            for inner in value if field.is_repeated else (value,):
                _check_fields(inner)


@lru_cache(1)
def messages() -> dict[str, type[Message]]:
    """Return the class of the message that each route's handler parses, by method and rule."""
    classes: dict[str, type[Message]] = {SEARCH_DATASETS: SearchDatasets}
    for path, request, methods in handlers.get_endpoints(lambda request: request):
        if isinstance(request, type):  # the others are functions, which parse no message
            classes |= {line(method, path): request for method in methods}
    return classes


_remembered: TTLCache[tuple[str, bytes], Any] = TTLCache(REMEMBERED, REMEMBERED_SECONDS)


# Users that a proxy has authenticated have no password here. MLflow, which checks one with every
# request, gets a word in its place that this process alone knows.
_PROXY_KEY = secrets.token_bytes(32)
_authenticate_user = auth.store.authenticate_user


def _authenticate_any(username: str, password: str, **options: Any) -> bool:
    is_of_proxy = hmac.compare_digest(password.encode(), _proxy_password(username).encode())
    return is_of_proxy or bool(_authenticate_user(username, password, **options))


def _proxy_password(user: str) -> str:
    return hmac.new(_PROXY_KEY, user.encode(), "sha256").hexdigest()


auth.store.authenticate_user = _authenticate_any


def proxy_account(user: str) -> tuple[Account, bytes] | None:
    """Return the account of a user of the proxy, and the header by which MLflow accepts it.

    Returns None if nobody made an account of this name.
    """
    password = _proxy_password(user)
    account = auth._authenticate_cached(user, password)
    words = base64.b64encode(f"{user}:{password}".encode())
    return (account, b"Basic " + words) if account else None


def cached_account(user: str, password: str) -> Account | None:
    """Return an account that was checked within a minute; no hashing, no database."""
    with auth._USER_AUTH_CACHE_LOCK:
        return auth._USER_AUTH_CACHE.get(auth._auth_cache_key(user, password))


def verify_password(user: str, password: str) -> Account | None:
    """Return the account of a name and a password, None if they are wrong.

    It is as slow for an unknown name as for any other.
    """
    account = auth._authenticate_cached(user, password)
    if account:
        with auth._USER_AUTH_CACHE_LOCK:
            _remembered[auth._auth_cache_key(user, password)] = account
    elif not auth.store.has_user(user):
        check_password_hash(_dummy_hash(), password)
    return account


def is_remembered(user: str, password: str) -> bool:
    """Return whether a name and a password were right before; no database."""
    with auth._USER_AUTH_CACHE_LOCK:
        return auth._auth_cache_key(user, password) in _remembered


def renew(user: str, password: str) -> Account | None:
    """Give a remembered log-in another minute if the database has the same hash; no hashing."""
    if account := cached_account(user, password):
        return account
    key = auth._auth_cache_key(user, password)
    with suppress(LookupError), _lookup_errors():
        account = auth.store.get_user(user)
    with auth._USER_AUTH_CACHE_LOCK:
        before = _remembered.pop(key, None)
        if not (before and account):
            return None
        if (before.id, before.password_hash) != (account.id, account.password_hash):
            return None
        auth._USER_AUTH_CACHE[key] = _remembered[key] = account
    return account


def last_login(pair: str) -> int:
    """Return the day on which a pair of `add_login` logged in last, 0 for an unknown one."""
    with auth.store.engine.connect() as connection:
        query = text(f"SELECT day FROM {LOGINS} WHERE pair = :pair")
        return int(connection.execute(query, {"pair": pair}).scalar() or 0)


def add_login(pair: str, day: int, oldest: int) -> None:
    """Record that a pair of name and address logged in, and delete those up to the oldest day."""
    on_conflict = "ON CONFLICT (pair) DO UPDATE SET day = :day"
    upsert = f"INSERT INTO {LOGINS} VALUES (:pair, :day) {on_conflict}"
    with auth.store.engine.begin() as connection:
        connection.execute(text(f"DELETE FROM {LOGINS} WHERE day <= :day"), {"day": oldest})
        connection.execute(text(upsert), {"pair": pair, "day": day})


def teams(account: Account) -> frozenset[str]:
    """Return the names of the teams that an account belongs to."""
    return _teams(auth.store.list_user_roles(account.id))


def may_write(account: Account, experiment: str) -> bool:
    """Return whether a role of the account permits changes in an experiment."""
    permission = auth._role_grant_for_resource(
        account.id, "experiment", experiment, DEFAULT_WORKSPACE_NAME
    )
    return permission is not None and bool(permission.can_update)


def _teams(roles: Iterable[Any]) -> frozenset[str]:
    return frozenset(role.name for role in roles if not role.name.startswith(PERSONAL_ROLE))


def _list_grants(user_id: int, workspace: str, kinds: Collection[str]) -> list[RoleGrantRow]:
    """Return the grants of a user, for every check of MLflow's and of the guard's.

    A thing is its team's by its present name, unless a grant to the team limits that. Explicit
    grants count for the thing that they were given for: SQLite reuses the id of a removed one.
    """
    roles = auth.store.list_user_roles_for_workspace(user_id, workspace)
    items = [(role.name, item) for role in roles for item in role.permissions]
    grants = [
        RoleGrantRow(item.resource_type, "*", item.permission)
        for _, item in items
        if item.resource_pattern == "*" and item.resource_type in {*kinds, "workspace"}
    ]
    teams = _teams(roles)
    for kind in THINGS.keys() & set(kinds):
        explicit: dict[str, dict[str, str]] = {}
        for role, item in items:
            if item.resource_type == kind and item.resource_pattern != "*":
                explicit.setdefault(item.resource_pattern, {})[role] = item.permission
        claimed = _claimed(kind, explicit)
        for identifier, name, created in _things(kind, teams, explicit):
            is_claimed = claimed.get(identifier) == created
            permissions = explicit.get(identifier, {}) if is_claimed else {}
            team = names.team_of(name, THINGS[kind][-1])
            if team in teams:
                permissions.setdefault(team, MANAGE)
            grants += [RoleGrantRow(kind, identifier, level) for level in permissions.values()]
    return grants


def _things(
    kind: str, teams: Collection[str], identifiers: Iterable[str]
) -> list[tuple[str, str, int]]:
    """Return id, name and time of creation of the things of these teams, and of these ids."""
    identifier, name, created, grammar = THINGS[kind]
    # On SQLite, LIKE does not distinguish upper and lower case.
    prefixes = [name.startswith(f"{team}{grammar.separator}", autoescape=True) for team in teams]
    query = select(identifier, name, created).where(
        or_(identifier.in_(list(identifiers)), *prefixes)
    )
    with handlers._get_tracking_store().engine.connect() as connection:
        return [(row[0], row[1], row[2] or 0) for row in connection.execute(query)]


def _claimed(kind: str, identifiers: Collection[str]) -> dict[str, int]:
    """Return for each of these ids when the thing was made that explicit grants are for."""
    if not identifiers:
        return {}
    query = text(f"SELECT id, created FROM {GRANTS} WHERE kind = :kind AND id IN :ids")
    values = {"kind": kind, "ids": list(identifiers)}
    with auth.store.engine.connect() as connection:
        rows = connection.execute(query.bindparams(bindparam("ids", expanding=True)), values)
        return {row[0]: row[1] for row in rows}


def _claim(kind: str, identifier: str) -> None:
    """Remove grants that were for another thing of this id: the next ones are for the present one.

    Raises:
        MlflowException: There is no such thing.
    """
    things = _things(kind, (), [identifier])
    if not things:
        raise MlflowException(f"there is no {kind} {identifier}", RESOURCE_DOES_NOT_EXIST)
    values = {"kind": kind, "id": identifier, "created": things[0][2]}
    on_conflict = f"DO UPDATE SET created = :created WHERE {GRANTS}.created != :created"
    upsert = f"INSERT INTO {GRANTS} VALUES (:kind, :id, :created) ON CONFLICT (kind, id)"
    older = "resource_type = :kind AND resource_pattern = :id"
    with auth.store.engine.begin() as connection:
        if connection.execute(text(f"{upsert} {on_conflict}"), values).rowcount:
            connection.execute(text(f"DELETE FROM role_permissions WHERE {older}"), values)


def _claim_first(add: Callable[..., Any]) -> Callable[..., Any]:
    def claim_and_add(holder: Any, kind: str, identifier: str, permission: str) -> Any:
        if kind in THINGS and identifier != "*":
            _claim(kind, identifier)
        return add(holder, kind, identifier, permission)

    return claim_and_add


def _grant_to_maker(_user: str, kind: str, identifier: str, _permission: str) -> None:
    """Grant nothing to the maker of a new thing: its name decides."""
    if kind in THINGS:
        _claim(kind, identifier)


auth.store.list_grants = _list_grants
auth.store.add_role_permission = _claim_first(auth.store.add_role_permission)
auth.store.grant_user_resource_permission = _claim_first(auth.store.grant_user_resource_permission)
auth.store.grant_user_permission = _grant_to_maker


@lru_cache(100_000)
def locate(identifier: str, *, is_model: bool) -> tuple[str, str]:
    """Return the experiment of a run or logged model, and the address of its files.

    Raises:
        LookupError: There is no such thing.
    """
    with _lookup_errors():
        if is_model:
            logged = _client().get_logged_model(identifier)
            return str(logged.experiment_id), str(logged.artifact_location)
        info = _client().get_run(identifier).info
    return str(info.experiment_id), str(info.artifact_uri)


@lru_cache(1)
def _client() -> MlflowClient:
    """Return a client of the database, which has the engine that MLflow's handlers use."""
    return MlflowClient(os.environ[BACKEND])


def check_upload(path: str) -> None:
    """Raise Refusal for a file in the place of a folder or below a file.

    An object store has no folders.
    """
    root = os.environ[ARTIFACTS]
    if "://" in root:
        return
    place = Path(root, path)
    if path.endswith("/") or place.is_dir():
        raise Refusal(Reason.INVALID, f"{path} is a folder; name the file in it")
    for parent in place.relative_to(root).parents:
        if Path(root, parent).is_file():
            raise Refusal(Reason.INVALID, f"{parent} is a file; no file lies below it")


@contextmanager
def _lookup_errors() -> Iterator[None]:
    """Raise LookupError for what does not exist; other errors of the database stay errors."""
    try:
        yield
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise LookupError(str(error)) from error
        raise


@lru_cache(1)
def _dummy_hash() -> str:
    return str(generate_password_hash(secrets.token_urlsafe()))
