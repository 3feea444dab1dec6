"""Tracking server of several teams, started by MLflow's command: passwords, permissions."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
import requests

from deploy import authentication
from tests import warm
from tests.conftest import PYTHONPATH, wait_for
from tests.tracking.postgres import free_port

API, FILES = "/api/2.0/mlflow", "/api/2.0/mlflow-artifacts/artifacts"
# Address and secret of the proxy that the server of `mlflow server` trusts.
PROXY, PROXY_SECRET = "127.0.0.2", secrets.token_hex(24)


@dataclass(frozen=True)
class Group:
    """Running server, and the names and passwords of its users."""

    folder: Path
    uri: str
    accounts: Path
    proxy_port: int

    @property
    def main(self) -> psutil.Process:
        return psutil.Process(int((self.folder / "server.pid").read_text()))

    def password(self, user: str) -> str:
        lines = (self.accounts / f"{user}.env").read_text().splitlines()
        return next(line.split("'")[1] for line in lines if "PASSWORD" in line)

    def environment(self, user: str) -> dict[str, str]:
        stored = {
            name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")
        }
        local = {"MLFLOW_TRACKING_URI": self.uri, "PYTHONPATH": PYTHONPATH, "COLUMNS": "200"}
        if user:
            local["MLFLOW_TRACKING_USERNAME"] = user
            local["MLFLOW_TRACKING_PASSWORD"] = self.password(user)
        return stored | local

    def call(
        self, user: str, *arguments: str, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "experiments", *arguments]
        return warm.run(command, self.environment(user), cwd or self.accounts)

    def admin(self, **values: str) -> subprocess.CompletedProcess[str]:
        options = [f"--{name}={text}" for name, text in values.items()]
        return self.call("admin", "admin", f"--output={self.accounts}", *options)

    def ask(self, user: str, method: str, path: str, **named: object) -> requests.Response:
        """Send a request to an address, or to a path of MLflow's API without a slash before it."""
        words = (user, self.password(user)) if user else None
        options: Any = {"auth": words, "timeout": 30, **named}
        address = path if path.startswith("/") else f"{API}/{path}"
        return requests.request(method, f"{self.uri}{address}", **options)

    def post(self, user: str, path: str, **sent: object) -> Any:
        """Return the answer to a message that is accepted."""
        answer = self.ask(user, "POST", path, json=sent)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def check(self, *steps: tuple[str, str, str, object, int]) -> None:
        """Send requests of (user, method, path, JSON), and compare their statuses."""
        for user, method, path, sent, status in steps:
            answer = self.ask(user, method, path, json=sent)
            assert answer.status_code == status, (user, path, sent, answer.text)

    def experiment(self, name: str) -> dict[str, Any]:
        path = f"experiments/get-by-name?experiment_name={quote(name)}"
        experiment: dict[str, Any] = self.ask("admin", "GET", path).json()["experiment"]
        return experiment


def add_teams(made: Group, of_team: dict[str, str]) -> None:
    """Create teams of a user each."""
    for team, user in of_team.items():
        for values in ({"action": "add_team"}, {"action": "add_user", "user": user}):
            done = made.admin(**values, team=team)
            assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def mlflow_server(
    folder: Path, *options: str, accounts_uri: str = "", proxy_port: int = 0, **named: str
) -> Iterator[Group]:
    """Yield a server of `mlflow server --app-name evenhand` with an administrator alone.

    Args:
        folder: Of the server.
        options: More options of the command.
        accounts_uri: Database of the accounts, if it is not that of the runs.
        proxy_port: Port of a proxy whose name the server has too.
        named: More variables of its environment.
    """
    port, password = free_port(), secrets.token_hex()
    made = Group(folder, f"http://127.0.0.1:{port}", folder / "accounts", proxy_port)
    if proxy_port:
        hosts = f"127.0.0.1:{port},localhost:{proxy_port}"
        options = ("--allowed-hosts", hosts, *options)
    made.accounts.mkdir()
    (made.accounts / "admin.env").write_text(f"export MLFLOW_TRACKING_PASSWORD='{password}'")
    key = secrets.token_hex()
    drawn = {"MLFLOW_AUTH_ADMIN_PASSWORD": password, "MLFLOW_FLASK_SERVER_SECRET_KEY": key}
    environment = made.environment("") | drawn | named
    if accounts_uri:
        authentication.write_settings(folder / "accounts.ini", accounts_uri)
        environment["MLFLOW_AUTH_CONFIG_PATH"] = str(folder / "accounts.ini")
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "evenhand"]
    command += ["--port", str(port), "--artifacts-destination", str(folder / "artifacts"), *options]
    process = warm.Process(command, environment, folder, folder / "server.log")
    (folder / "server.pid").write_text(str(process.pid))
    try:
        wait_for(lambda: process.poll() is not None or answers(f"{made.uri}/ready"), 90)
        assert process.poll() is None, (folder / "server.log").read_text()
        yield made
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def answers(address: str, **options: Any) -> bool:
    """Return True if a server is there and has no error."""
    try:
        return requests.get(address, timeout=5, **options).status_code < 500
    except requests.RequestException:
        return False


def send(
    group: Group,
    line: str,
    *headers: str,
    body: bytes = b"",
    words: tuple[str, str] | None = None,
    source: str = "127.0.0.1",
) -> tuple[int, str]:
    """Return status and text of a request that no library tidies up.

    Args:
        group: Receiver.
        line: Method and path.
        headers: As they are sent, in addition to those of the other arguments.
        body: Its length is stated, unless a header states one.
        words: Name and password.
        source: Address of the sender.
    """
    netloc = urlsplit(group.uri).netloc
    lines = [f"{line} HTTP/1.1", f"Host: {netloc}", "Connection: close", *headers]
    if words:
        lines.append(f"Authorization: Basic {b64encode(':'.join(words).encode()).decode()}")
    if not any(header.startswith(("Content-Length", "Transfer-Encoding")) for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    with connected(group, source) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        answer = HTTPResponse(connection)
        answer.begin()
        return answer.status, answer.read().decode(errors="replace")


def connected(group: Group, source: str = "127.0.0.1") -> socket.socket:
    port = int(group.uri.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), 60, (source, 0))


class Team:
    """Team with a user, and an experiment with a run, a file and a logged model."""

    def __init__(self, group: Group, user: str, team: str) -> None:
        self.experiment = str(group.experiment(f"{team}/captioning")["experiment_id"])
        self.run, self.model = contents(group, user, self.experiment)
        self.file = f"{FILES}/{self.experiment}/{self.run}/artifacts/note.txt"
        group.ask(user, "PUT", self.file, data=b"kept").raise_for_status()


def contents(group: Group, user: str, experiment: str) -> tuple[str, str]:
    """Return the ids of a new run and a new logged model."""
    run = group.post(user, "runs/create", experiment_id=experiment)["run"]["info"]["run_id"]
    model = {"experiment_id": experiment, "name": "kept", "source_run_id": run}
    return run, group.post(user, "logged-models", **model)["model"]["info"]["model_id"]
