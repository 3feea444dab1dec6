"""Application `evenhand` of MLflow's command: `mlflow server --app-name evenhand`.

MLflow imports this module in the process of its command. Then it starts uvicorn, whose workers
call `create`. So the import checks the command's options and prepares the server: uvicorn would
replace a worker that fails for ever.
"""

from __future__ import annotations

import configparser
import os
import resource
from collections.abc import Iterable, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from mlflow.tracking._tracking_service.utils import _get_default_tracking_uri
from starlette.types import ASGIApp

from deploy import authentication

APP = "evenhand"
# Other options of MLflow's keep their defaults: they weaken the guard, or have no effect behind it.
OPTIONS = {
    "app_name", "backend_store_uri", "artifacts_destination", "host", "port", "workers",
    "allowed_hosts", "cors_allowed_origins", "x_frame_options",
}  # fmt: skip
DATABASES = ("sqlite", "postgresql")
SETTINGS = "MLFLOW_AUTH_CONFIG_PATH"
LOOPBACK = ("127.0.0.1", "localhost")
SHORTEST_KEY = 16
LONGEST_CACHE_SECONDS = 60
PROXIES = "FORWARDED_ALLOW_IPS"  # uvicorn's
PROXY_SECRET, SHORTEST_SECRET = "EVENHAND_PROXY_SECRET", 32
STATEMENT_SECONDS = 60
# Where `evenhand admin` writes passwords of new users, if it is called in the server's folder.
ACCOUNTS = ".evenhand/accounts"
UVICORN = {
    "UVICORN_HTTP": "deploy.guard.connections:BoundedProtocol",
    "UVICORN_WS": "none",
    "UVICORN_TIMEOUT_KEEP_ALIVE": "20",
    # A worker that does not answer in this time is ended. A busy one may need some seconds.
    "UVICORN_TIMEOUT_WORKER_HEALTHCHECK": "30",
    "UVICORN_SERVER_HEADER": "False",
}


class Unsafe(click.ClickException):
    """Option or variable that is missing, or would weaken the guard. One line, exit code 2."""

    exit_code = 2


def create() -> ASGIApp:
    """Return the application that a worker of uvicorn serves."""
    from deploy.guard import app

    return app.create(os.environ.get(PROXY_SECRET, ""))


def prepare(context: click.Context) -> None:
    """Check the options and the environment of MLflow's command, and make tables and administrator.

    Raises:
        Unsafe: Something is missing or weakens the guard.
    """
    options = context.params
    uri = options["backend_store_uri"] or _get_default_tracking_uri()  # as the command has it
    _check_options(context, uri)
    _check_environment(uri)
    os.environ |= {
        "MLFLOW_BACKEND_STORE_URI": uri,
        **_addresses(options),
        **UVICORN,
        "UVICORN_PROXY_HEADERS": str(bool(os.environ.get(PROXIES))),
    }
    _prepare(options["artifacts_destination"])


def _check_options(context: click.Context, uri: str) -> None:
    for parameter in context.command.params:
        name = str(parameter.name)
        is_default = context.params.get(name) == parameter.get_default(context)
        if name not in OPTIONS and not is_default:
            names = sorted(f"--{name.replace('_', '-')}" for name in OPTIONS)
            raise Unsafe(
                f"--app-name {APP} does not support {parameter.opts[0]}"
                f"; it supports {', '.join(names)}"
            )
    if urlsplit(uri).scheme.partition("+")[0] not in DATABASES:
        raise Unsafe(
            "--backend-store-uri (MLFLOW_BACKEND_STORE_URI) names no database: "
            "postgresql+psycopg2://user@host/name or sqlite:///mlflow.db"
        )


def _check_environment(uri: str) -> None:
    """Check the variables; without a file of accounts, write one for accounts in the database."""
    for name in ("MLFLOW_ENABLE_WORKSPACES", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION"):
        if os.environ.get(name, "false").lower() not in ("false", "0"):
            raise Unsafe(f"--app-name {APP} does not support {name}; set it to false")
    path = Path(os.environ.setdefault(SETTINGS, "auth.ini"))
    if path == Path("auth.ini") and not path.exists():
        authentication.write_settings(path, uri)
    if not path.is_file():
        raise Unsafe(f"{SETTINGS}={path} is no file; leave it out, or see docs/server.md")
    if len(os.environ.get("MLFLOW_FLASK_SERVER_SECRET_KEY", "")) < SHORTEST_KEY:
        raise Unsafe(
            "MLFLOW_FLASK_SERVER_SECRET_KEY is missing or short; it needs "
            f"at least {SHORTEST_KEY} random characters: openssl rand -hex 24"
        )
    if any(map(_is_everybody, os.environ.get(PROXIES, "").split(","))):
        raise Unsafe(
            f"{PROXIES} believes every client's X-Forwarded-For; "
            "name the proxies' addresses, with commas between"
        )


def _is_everybody(proxy: str) -> bool:
    """Return whether an entry of uvicorn's trusted addresses holds all of them."""
    try:
        return ip_network(proxy.strip(), strict=False).prefixlen == 0
    except ValueError:  # a name, or the path of a socket
        return proxy.strip() == "*"


def _addresses(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the names by which users call the server, and the addresses of its own pages."""
    port, named = options["port"], options["allowed_hosts"]
    if not named:
        if options["host"] not in LOOPBACK:
            raise Unsafe(
                "--allowed-hosts is missing: the names by which users call the server"
                f", for example mlflow.example.org:{port}"
            )
        named = ",".join(f"{host}:{port}" for host in LOOPBACK)
    hosts = [name.strip() for name in named.split(",")]
    origins = [f"{scheme}://{name}" for name in hosts for scheme in ("http", "https")]
    if options["cors_allowed_origins"]:
        origins = [name.strip() for name in options["cors_allowed_origins"].split(",")]
    if "*" in "".join((*hosts, *origins)):
        raise Unsafe("--allowed-hosts and --cors-allowed-origins name each address, without *")
    return {
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(hosts),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins),
    }


def _prepare(artifacts: str) -> None:
    """Make tables and administrator, with Unsafe in place of MLflow's errors."""
    settings = f"{os.environ[SETTINGS]} ({SETTINGS})"
    try:
        from mlflow.exceptions import MlflowException

        from deploy.guard import backend

        backend.check_settings(LONGEST_CACHE_SECONDS)
    except ImportError as error:
        raise Unsafe(f"{error}; pip install 'evenhand[server]'") from None
    except KeyError as error:
        raise Unsafe(f"{settings} lacks {error}") from None
    except (configparser.Error, ValueError) as error:
        raise Unsafe(f"{settings}: {error}") from None
    _check_artifacts(artifacts, (*backend.files(), ACCOUNTS))
    if 0 < len(os.environ.get(PROXY_SECRET, "")) < SHORTEST_SECRET:
        raise Unsafe(
            f"{PROXY_SECRET} is short; it needs "
            f"at least {SHORTEST_SECRET} random characters: openssl rand -hex 24"
        )
    _, largest = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (largest, largest))
    try:
        if "://" not in artifacts:
            Path(artifacts).mkdir(parents=True, exist_ok=True)
        backend.prepare(artifacts)
    except (MlflowException, OSError, ValueError) as error:
        raise Unsafe(" ".join(str(error).split())) from None
    # libpq reads it in every worker.
    os.environ.setdefault("PGOPTIONS", f"-c statement_timeout={STATEMENT_SECONDS}s")


def _check_artifacts(artifacts: str, private: Iterable[str]) -> None:
    """Raise Unsafe for a folder of artifacts that would serve a private file."""
    if artifacts.startswith("file:"):
        raise Unsafe(f"artifacts in {artifacts}: write the path of the folder alone")
    for place in private if "://" not in artifacts else ():
        if Path(place).resolve().is_relative_to(Path(artifacts).resolve()):
            raise Unsafe(
                f"artifacts in {artifacts}: {place} lies there; "
                "choose a folder of its own, such as ./mlartifacts"
            )


# uvicorn's own command has such a context too, without a name of an application.
if (context := click.get_current_context(silent=True)) and context.params.get("app_name") == APP:
    prepare(context)
