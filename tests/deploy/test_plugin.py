"""`mlflow server --app-name evenhand`: MLflow's own command starts the guard, or refuses to."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mlflow
import pytest

from deploy import authentication
from tests import warm
from tests.conftest import ROOT
from tests.deploy.group import FILES, PROXY, Group, contents, send

COMMAND = [sys.executable, "-m", "mlflow", "server", "--app-name", "evenhand"]


@pytest.mark.parametrize(("peer", "client"), [(PROXY, "192.0.2.7"), ("127.0.0.1", "127.0.0.1")])
def test_only_named_proxies_state_addresses(mlflow_group: Group, peer: str, client: str) -> None:
    before = (mlflow_group.folder / "server.log").read_text()
    send(mlflow_group, "GET /health", "X-Forwarded-For: 192.0.2.7", source=peer)
    added = (mlflow_group.folder / "server.log").read_text().removeprefix(before)
    assert re.findall(r"([\d.]+):\d+ - \"GET /health", added) == [client]


def create(group: Group, user: str, name: str) -> str:
    return str(group.post(user, "experiments/create", name=name)["experiment_id"])


def remove(group: Group, user: str, experiment: str) -> None:
    """Delete an experiment, its runs and their files for good, as docs/server.md says."""
    run, _ = contents(group, user, experiment)
    file = f"{experiment}/{run}/artifacts/note.txt"
    group.ask(user, "PUT", f"{FILES}/{file}", data=b"x").raise_for_status()
    group.post(user, "experiments/delete", experiment_id=experiment)
    command = [sys.executable, "-m", "mlflow", "gc", "--experiment-ids", experiment]
    command += ["--backend-store-uri", f"sqlite:///{group.folder}/mlflow.db"]
    command += ["--artifacts-destination", str(group.folder / "artifacts")]
    done = warm.run(command, group.environment("admin"), group.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (group.folder / "artifacts" / file).exists()


def assert_writable(
    group: Group, experiment: str, things: tuple[str, str], alice: int = 200, bob: int = 403
) -> None:
    """Change an experiment, its run and its model as each user, and compare the statuses."""
    (run, model), tag = things, {"key": "a", "value": "b"}
    file, named = f"{FILES}/{experiment}/{run}/artifacts/note.txt", {"experiment_id": experiment}
    requests: list[tuple[str, str, dict[str, object] | None]] = [
        ("POST", "runs/create", {**named}),
        ("POST", "runs/set-tag", {"run_id": run, **tag}),
        ("POST", "experiments/set-experiment-tag", {**named, **tag}),
        ("PATCH", f"logged-models/{model}/tags", {"tags": [tag]}),
        ("PUT", file, {}),
        ("DELETE", file, None),
        ("POST", "runs/delete", {"run_id": run}),
        ("POST", "runs/restore", {"run_id": run}),
        ("POST", "experiments/delete", {**named}),
        ("POST", "experiments/restore", {**named}),
    ]
    for user, status in {"alice": alice, "bob": bob}.items():
        group.check(*((user, *request, status) for request in requests))


def grant(group: Group, experiment: str) -> None:
    """Give bob's team an experiment."""
    values = {"action": "grant", "team": "speech", "permission": "MANAGE"}
    assert group.admin(**values, experiment=experiment).returncode == 0


def test_reused_id_passes_no_permission_on(mlflow_group: Group) -> None:
    """SQLite gives the id of a removed experiment to the next one."""
    group, removed = mlflow_group, create(mlflow_group, "alice", "vision/removed")
    grant(group, "vision/removed")
    personal = {"username": "alice", "resource_type": "experiment", "permission": "MANAGE"}
    address = "/api/3.0/mlflow/users/permissions/grant"
    group.post("admin", address, **personal, resource_id=removed)
    assert_writable(group, removed, contents(group, "bob", removed), alice=200, bob=200)

    remove(group, "alice", removed)
    assert create(group, "bob", "speech/next") == removed
    assert_writable(group, removed, contents(group, "bob", removed), alice=403, bob=200)

    remove(group, "bob", removed)
    assert create(group, "alice", "vision/next") == removed
    things = contents(group, "alice", removed)
    assert_writable(group, removed, things)
    grant(group, "vision/next")
    assert_writable(group, removed, things, bob=200)

    remove(group, "alice", removed)
    # as MLflow's other commands do, without the server
    store = mlflow.MlflowClient(f"sqlite:///{group.folder}/mlflow.db")
    assert store.create_experiment("vision/beside", f"mlflow-artifacts:/{removed}") == removed
    assert_writable(group, removed, contents(group, "alice", removed))


def test_present_name_decides_who_writes(mlflow_group: Group) -> None:
    group, moved = mlflow_group, create(mlflow_group, "alice", "vision/moved")
    things, rename = contents(group, "alice", moved), {"experiment_id": moved}
    rename["new_name"] = "vision/moved again"
    group.check(("bob", "POST", "experiments/update", rename, 403))
    group.post("alice", "experiments/update", **rename)
    group.post("admin", "experiments/update", **rename | {"new_name": "speech/moved"})
    assert_writable(group, moved, things, alice=403, bob=200)


def test_grant_on_a_registered_model_ends_with_it(mlflow_group: Group) -> None:
    group, name = mlflow_group, {"name": "vision.again"}
    named = {"username": "bob", "resource_type": "registered_model", "resource_id": "vision.again"}
    permissions = "/api/3.0/mlflow/users/permissions"

    def permission() -> str:
        answer = group.ask("admin", "GET", f"{permissions}/get", params=named)
        return str(answer.json()["permission"])

    sent = {**named, "permission": "EDIT"}
    group.check(("admin", "POST", f"{permissions}/grant", sent, 404))
    group.post("alice", "registered-models/create", **name)
    group.post("admin", f"{permissions}/grant", **sent)
    assert permission() == "EDIT"
    group.check(("alice", "DELETE", "registered-models/delete", name, 200))
    group.post("alice", "registered-models/create", **name)
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
# Lines of the file of accounts that are refused.
SETTINGS = ("default_permission = EDIT", "auth_cache_ttl_seconds = 0", "database_uri = ")
SETTINGS += ("authorization_function = os:abort",)


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
    done = warm.run([*COMMAND, *options], environment, folder, 60)
    assert done.returncode == 2, (options, named, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    return line


@pytest.mark.parametrize(
    ("options", "named", "text"),
    [REFUSED[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in REFUSED[1:])],
)
def test_unsafe_option_is_refused_in_one_line(
    tmp_path: Path, empty_store: Path, options: tuple[str, ...], named: dict[str, str], text: str
) -> None:
    assert text in refusal(tmp_path, empty_store, options, named)


@pytest.mark.slow
@pytest.mark.parametrize("line", SETTINGS)
def test_unsafe_settings_of_accounts_are_refused(
    tmp_path: Path, empty_store: Path, line: str
) -> None:
    name = line.partition(" =")[0]
    authentication.write_settings(tmp_path / "auth.ini", f"sqlite:///{tmp_path}/store.db")
    text = re.sub(f"(?m)^{name}.*", "", (tmp_path / "auth.ini").read_text())
    (tmp_path / "auth.ini").write_text(text + line * (not line.endswith("= ")))
    assert name in refusal(tmp_path, empty_store, (), {})


def test_artifacts_are_apart_from_databases(tmp_path: Path, empty_store: Path) -> None:
    settings = tmp_path / "settings" / "auth.ini"
    settings.parent.mkdir()
    shutil.copy(empty_store, tmp_path / "accounts.db")
    authentication.write_settings(settings, f"sqlite:///{tmp_path}/accounts.db")
    (tmp_path / "link").symlink_to(tmp_path)
    folder, named = tmp_path / "place", {"MLFLOW_AUTH_CONFIG_PATH": str(settings)}
    for artifacts, text in {tmp_path / "link": "auth.ini", folder: f"{folder}/store.db"}.items():
        options = ("--artifacts-destination", str(artifacts))
        assert text in refusal(folder, empty_store, options, named)


@pytest.mark.slow
def test_empty_variable_of_workspaces_is_an_unset_one(tmp_path: Path) -> None:
    environment = {**os.environ, "MLFLOW_ENABLE_WORKSPACES": "", "MLFLOW_AUTH_CONFIG_PATH": "x"}
    done = subprocess.run(COMMAND, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "MLFLOW_AUTH_CONFIG_PATH" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
