"""`mlflow server --app-name evenhand`: MLflow's own command starts the guard, or refuses to."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import mlflow
import pytest

from deploy import authentication
from tests import warm
from tests.conftest import ROOT
from tests.deploy.group import API, PROXY, Group
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


def create(group: Group, user: str, name: str) -> str:
    answer = group.ask(user, "POST", f"{API}/experiments/create", json={"name": name})
    answer.raise_for_status()
    return str(answer.json()["experiment_id"])


def remove(group: Group, user: str, experiment: str) -> None:
    """Delete an experiment and its runs for good, as an administrator of the machine does."""
    sent = {"experiment_id": experiment}
    group.ask(user, "POST", f"{API}/experiments/delete", json=sent).raise_for_status()
    store = f"sqlite:///{group.folder}/mlflow.db"
    command = [sys.executable, "-m", "mlflow", "gc", "--backend-store-uri", store]
    command += ["--experiment-ids", experiment]
    done = warm.run(command, group.environment("admin"), group.folder)
    assert done.returncode == 0, done.stdout + done.stderr


def attempts(group: Group, user: str, team: str, experiment: str, run: str, model: str) -> set[int]:
    """Return the statuses of a user's changes in an experiment of a team."""
    tag = {"key": "a", "value": "b"}
    file = f"/api/2.0/mlflow-artifacts/artifacts/{experiment}/{run}/artifacts/note.txt"
    requests: list[tuple[str, str, dict[str, object]]] = [
        ("POST", f"{API}/runs/create", {"experiment_id": experiment}),
        ("POST", f"{API}/runs/set-tag", {"run_id": run, **tag}),
        ("POST", f"{API}/experiments/set-experiment-tag", {"experiment_id": experiment, **tag}),
        ("PATCH", f"{API}/logged-models/{model}/tags", {"tags": [tag]}),
        ("PUT", file, {}),
        ("DELETE", file, {}),
        ("POST", f"{API}/runs/delete", {"run_id": run}),
        ("POST", f"{API}/runs/restore", {"run_id": run}),
        (
            "POST",
            f"{API}/experiments/update",
            {"experiment_id": experiment, "new_name": f"{team}/renamed {experiment}"},
        ),
        ("POST", f"{API}/experiments/delete", {"experiment_id": experiment}),
        ("POST", f"{API}/experiments/restore", {"experiment_id": experiment}),
    ]
    bodies = [{"json": sent} if sent else {"data": b"x"} for *_, sent in requests]
    return {
        group.ask(user, method, path, **(body if method != "DELETE" else {})).status_code
        for (method, path, _), body in zip(requests, bodies, strict=True)
    }


def contents(group: Group, user: str, experiment: str) -> tuple[str, str]:
    """Return the ids of a new run and a new logged model."""
    sent = {"experiment_id": experiment}
    run = group.ask(user, "POST", f"{API}/runs/create", json=sent).json()["run"]["info"]["run_id"]
    model = {**sent, "name": "kept", "source_run_id": run}
    made = group.ask(user, "POST", f"{API}/logged-models", json=model).json()
    return run, made["model"]["info"]["model_id"]


def test_reused_id_passes_no_permission_on(group: Group) -> None:
    """SQLite gives the id of a removed experiment to the next one."""
    removed = create(group, "alice", "vision/removed")
    grant = {"action": "grant", "team": "speech", "permission": "MANAGE"}
    assert group.admin(**grant, experiment="vision/removed").returncode == 0
    personal = {"username": "alice", "resource_type": "experiment", "resource_id": removed}
    address = "/api/3.0/mlflow/users/permissions/grant"
    sent = {**personal, "permission": "MANAGE"}
    group.ask("admin", "POST", address, json=sent).raise_for_status()
    assert attempts(group, "bob", "speech", removed, *contents(group, "bob", removed)) == {200}

    sent = {"experiment_id": removed, "new_name": "vision/removed"}
    group.ask("alice", "POST", f"{API}/experiments/update", json=sent).raise_for_status()
    remove(group, "alice", removed)
    assert create(group, "bob", "speech/next") == removed
    things = contents(group, "bob", removed)
    assert attempts(group, "alice", "vision", removed, *things) == {403}
    assert attempts(group, "bob", "speech", removed, *things) == {200}

    remove(group, "bob", removed)
    assert create(group, "alice", "vision/next") == removed
    things = contents(group, "alice", removed)
    assert attempts(group, "bob", "speech", removed, *things) == {403}
    assert group.admin(**grant, experiment="vision/next").returncode == 0
    assert attempts(group, "bob", "speech", removed, *things) == {200}


def test_grant_counts_for_no_experiment_that_another_program_made(group: Group) -> None:
    """Create it in the database, as MLflow's other commands do, without the server."""
    removed = create(group, "alice", "vision/once")
    grant = {"action": "grant", "team": "speech", "permission": "MANAGE"}
    assert group.admin(**grant, experiment="vision/once").returncode == 0
    remove(group, "alice", removed)
    store = mlflow.MlflowClient(f"sqlite:///{group.folder}/mlflow.db")
    assert store.create_experiment("vision/beside", f"mlflow-artifacts:/{removed}") == removed
    things = contents(group, "alice", removed)
    assert attempts(group, "bob", "speech", removed, *things) == {403}
    assert attempts(group, "alice", "vision", removed, *things) == {200}


def test_present_name_decides_who_writes(group: Group) -> None:
    moved = create(group, "alice", "vision/moved")
    things = contents(group, "alice", moved)
    sent = {"experiment_id": moved, "new_name": "speech/moved"}
    group.ask("admin", "POST", f"{API}/experiments/update", json=sent).raise_for_status()
    assert attempts(group, "alice", "vision", moved, *things) == {403}
    assert attempts(group, "bob", "speech", moved, *things) == {200}


def test_grant_on_a_registered_model_ends_with_it(group: Group) -> None:
    model, address = {"name": "vision.again"}, "/api/3.0/mlflow/users/permissions"
    named = {"username": "bob", "resource_type": "registered_model", "resource_id": "vision.again"}

    def permission() -> str:
        answer = group.ask("admin", "GET", f"{address}/get", params=named)
        return str(answer.json()["permission"])

    sent = {**named, "permission": "EDIT"}
    assert group.ask("admin", "POST", f"{address}/grant", json=sent).status_code == 404
    group.ask("alice", "POST", f"{API}/registered-models/create", json=model).raise_for_status()
    group.ask("admin", "POST", f"{address}/grant", json=sent).raise_for_status()
    roles = group.ask("admin", "GET", "/api/3.0/mlflow/roles/list").json()["roles"]
    (role,) = (role["id"] for role in roles if role["name"] == "speech")
    grant = {"role_id": role, "resource_type": "registered_model", "permission": "EDIT"}
    grant["resource_pattern"] = "vision.again"
    address_of_roles = "/api/3.0/mlflow/roles/permissions/add"
    group.ask("admin", "POST", address_of_roles, json=grant).raise_for_status()
    assert permission() == "EDIT"
    group.ask("alice", "DELETE", f"{API}/registered-models/delete", json=model).raise_for_status()
    group.ask("alice", "POST", f"{API}/registered-models/create", json=model).raise_for_status()
    assert permission() == "READ"


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
    *((("--artifacts-destination", path), {}, "auth.ini") for path in (".", "/", "./a/../..")),
    (("--artifacts-destination", ".evenhand"), {}, ".evenhand/accounts"),
    (("--artifacts-destination", "store.db"), {}, "store.db"),
    ((), {"FORWARDED_ALLOW_IPS": "*"}, "FORWARDED_ALLOW_IPS"),
    ((), {"FORWARDED_ALLOW_IPS": "10.0.0.5, ::/0"}, "FORWARDED_ALLOW_IPS"),
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
    ((), {"MLFLOW_BACKEND_STORE_URI": "./mlruns"}, "--backend-store-uri"),
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


def test_artifacts_are_apart_from_databases(tmp_path: Path, empty_store: Path) -> None:
    (tmp_path / "settings").mkdir()
    shutil.copy(empty_store, tmp_path / "accounts.db")
    settings = tmp_path / "settings" / "auth.ini"
    authentication.write_settings(settings, f"sqlite:///{tmp_path}/accounts.db")
    (tmp_path / "link").symlink_to(tmp_path)
    named = {"MLFLOW_AUTH_CONFIG_PATH": str(settings)}
    # Its own database lies deeper.
    folder, options = tmp_path / "place", ("--artifacts-destination", str(tmp_path / "link"))
    assert "auth.ini" in refusal(folder, empty_store, options, named)
    options = ("--artifacts-destination", str(folder))
    assert f"{folder}/store.db" in refusal(folder, empty_store, options, named)


def test_empty_variable_of_workspaces_is_an_unset_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "evenhand"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/store.db"]
    environment = {**os.environ, "MLFLOW_ENABLE_WORKSPACES": "", "MLFLOW_AUTH_CONFIG_PATH": "x"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "MLFLOW_AUTH_CONFIG_PATH" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("setting", REFUSED_SETTINGS)
def test_unsafe_settings_of_accounts_are_refused(
    tmp_path: Path, empty_store: Path, setting: str
) -> None:
    uri = f"sqlite:///{tmp_path}/store.db"
    authentication.write_settings(tmp_path / "auth.ini", uri)
    lines = (tmp_path / "auth.ini").read_text().splitlines()
    others = [line for line in lines if not line.startswith(setting)]
    (tmp_path / "auth.ini").write_text("\n".join([*others, REFUSED_SETTINGS[setting]]))
    assert setting in refusal(tmp_path, empty_store, (), {})
