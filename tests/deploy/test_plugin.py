"""`mlflow server --app-name evenhand`: MLflow's own command starts the guard, or refuses to."""

from __future__ import annotations

import os
import re
import shutil
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import mlflow
import pytest

from deploy import authentication
from tests import warm
from tests.conftest import ROOT
from tests.deploy.group import PROXY, Group
from tests.deploy.test_guard import (
    test_forged_hosts_and_origins_are_refused,
    test_refused_routes_are_refused_to_administrators,
    test_without_a_password_only_health_and_ready_are_open,
)

__all__ = [
    "test_forged_hosts_and_origins_are_refused",
    "test_refused_routes_are_refused_to_administrators",
    "test_without_a_password_only_health_and_ready_are_open",
]


@pytest.fixture(scope="module")
def group(mlflow_group: Group) -> Group:
    """Return the server of MLflow's command, in place of the group's."""
    return mlflow_group


def test_client_logs_a_run(group: Group, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "alice")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", group.password("alice"))
    client = mlflow.MlflowClient(group.uri)
    experiment = client.get_experiment_by_name("vision/captioning")
    run = client.create_run(experiment.experiment_id)
    client.log_metric(run.info.run_id, "loss", 0.5)
    client.log_text(run.info.run_id, "kept", "note.txt")
    stored = client.get_run(run.info.run_id)
    assert stored.data.metrics["loss"] == 0.5
    path = client.download_artifacts(run.info.run_id, "note.txt", str(tmp_path))
    assert Path(path).read_text() == "kept"
    assert list((group.folder / "artifacts").rglob("note.txt"))
    with pytest.raises(mlflow.MlflowException) as error:
        client.create_experiment("speech/captioning")
    assert error.value.error_code == "PERMISSION_DENIED"


@pytest.mark.parametrize(("peer", "client"), [(PROXY, "192.0.2.7"), ("127.0.0.1", "127.0.0.1")])
def test_only_named_proxies_state_addresses(group: Group, peer: str, client: str) -> None:
    before = (group.folder / "server.log").read_text()
    connection = HTTPConnection(urlsplit(group.uri).netloc, source_address=(peer, 0))
    connection.request("GET", "/health", headers={"X-Forwarded-For": "192.0.2.7"})
    assert connection.getresponse().status == 200
    connection.close()
    added = (group.folder / "server.log").read_text().removeprefix(before)
    assert re.findall(r"([\d.]+):\d+ - \"GET /health", added) == [client]


def test_documented_settings_are_the_products() -> None:
    page = (ROOT / "docs" / "server.md").read_text()
    (written,) = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    assert written == authentication.SETTINGS.format(url="sqlite:///mlflow.db")


# Options and variables that are refused, and what the line names.
REFUSED: list[tuple[tuple[str, ...], dict[str, str], str]] = [
    (("--gunicorn-opts", "-t 5"), {}, "--gunicorn-opts"),
    (("--waitress-opts", "x"), {}, "--waitress-opts"),
    (("--uvicorn-opts", "--http auto"), {}, "--uvicorn-opts"),
    ((), {"MLFLOW_UVICORN_OPTS": "--http auto"}, "--uvicorn-opts"),
    (("--static-prefix", "/mlflow"), {}, "--static-prefix"),
    (("--no-serve-artifacts",), {}, "--serve-artifacts"),
    (("--artifacts-only",), {}, "--artifacts-only"),
    (("--default-artifact-root", "/etc"), {}, "--default-artifact-root"),
    (("--artifacts-destination", "file:///srv/x"), {}, "file:///srv/x"),
    (("--disable-security-middleware",), {}, "--disable-security-middleware"),
    ((), {"MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true"}, "--disable-security-middleware"),
    (("--expose-prometheus", "metrics"), {}, "--expose-prometheus"),
    (("--registry-store-uri", "sqlite:///other.db"), {}, "--registry-store-uri"),
    (("--enable-workspaces",), {}, "--enable-workspaces"),
    ((), {"MLFLOW_ENABLE_WORKSPACES": "true"}, "MLFLOW_ENABLE_WORKSPACES"),
    ((), {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "true"}, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION"),
    (("--host", "0.0.0.0"), {}, "--allowed-hosts"),
    (("--allowed-hosts", "*"), {}, "--allowed-hosts"),
    (("--cors-allowed-origins", "https://*.example.org"), {}, "--cors-allowed-origins"),
    (("--dev",), {}, "--dev"),
    ((), {"MLFLOW_BACKEND_STORE_URI": ""}, "--backend-store-uri"),
    ((), {"MLFLOW_FLASK_SERVER_SECRET_KEY": "short"}, "MLFLOW_FLASK_SERVER_SECRET_KEY"),
    ((), {"MLFLOW_AUTH_ADMIN_PASSWORD": ""}, "MLFLOW_AUTH_ADMIN_PASSWORD"),
    ((), {"MLFLOW_AUTH_ADMIN_PASSWORD": "tiny"}, "MLFLOW_AUTH_ADMIN_PASSWORD"),
    ((), {"EVENHAND_PROXY_SECRET": "short"}, "EVENHAND_PROXY_SECRET"),
    ((), {"MLFLOW_AUTH_CONFIG_PATH": "missing.ini"}, "MLFLOW_AUTH_CONFIG_PATH"),
]
# Settings of accounts that are refused, and the line that replaces one.
REFUSED_SETTINGS = {
    "default_permission": "default_permission = EDIT",
    "auth_cache_ttl_seconds": "auth_cache_ttl_seconds = 0",
    "database_uri": "",
    "authorization_function": "authorization_function = os:abort",
}


def refusal(folder: Path, store: Path, options: tuple[str, ...], named: dict[str, str]) -> str:
    """Return the line of a command that ends with code 2."""
    folder.mkdir(exist_ok=True)
    shutil.copy(store, folder / "store.db")
    uri = f"sqlite:///{folder}/store.db"
    if not (folder / "auth.ini").exists():
        authentication.write_settings(folder / "auth.ini", uri)
    environment = {key: text for key, text in os.environ.items() if not key.startswith("MLFLOW_")}
    password, key = "a password of this test", "a session key of this test"
    environment |= authentication.environment(folder / "auth.ini", uri, password, key) | named
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "evenhand", *options]
    done = warm.run(command, environment, folder, 60)
    assert done.returncode == 2, (options, named, done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("options", "named", "text"),
    [REFUSED[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in REFUSED[1:])],
)
def test_unsafe_option_is_refused_in_one_line(
    tmp_path: Path, empty_store: Path, options: tuple[str, ...], named: dict[str, str], text: str
) -> None:
    assert text in refusal(tmp_path, empty_store, options, named)


@pytest.mark.slow
@pytest.mark.parametrize("setting", REFUSED_SETTINGS)
def test_unsafe_settings_of_accounts_are_refused(
    tmp_path: Path, empty_store: Path, setting: str
) -> None:
    uri = f"sqlite:///{tmp_path}/store.db"
    authentication.write_settings(tmp_path / "auth.ini", uri)
    lines = (tmp_path / "auth.ini").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(setting)]
    (tmp_path / "auth.ini").write_text("\n".join([*kept, REFUSED_SETTINGS[setting]]))
    assert setting in refusal(tmp_path, empty_store, (), {})
