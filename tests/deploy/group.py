"""Tracking server of several teams, started by MLflow's command: passwords, permissions."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from deploy import authentication
from tests import warm
from tests.conftest import PYTHONPATH, wait_for

API = "/api/2.0/mlflow"
# Address and secret of the proxy that the server of `mlflow server` trusts.
PROXY, PROXY_SECRET = "127.0.0.2", secrets.token_hex(24)


def free_port() -> int:
    """Return a port below the kernel's own: it is still free minutes later."""
    while True:
        port = 15_000 + secrets.randbelow(15_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("0.0.0.0", port))
            return port


@dataclass(frozen=True)
class Group:
    """Running server, and the names and passwords of its users."""

    folder: Path
    uri: str
    accounts: Path
    proxy_port: int

    def password(self, user: str) -> str:
        if user == "admin":
            return str(json.loads((self.folder / "secrets.json").read_text())["admin_password"])
        lines = (self.accounts / f"{user}.env").read_text().splitlines()
        return next(line.split("'")[1] for line in lines if "PASSWORD" in line)

    def environment(self, user: str) -> dict[str, str]:
        stored = {
            name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")
        }
        local = {"MLFLOW_TRACKING_URI": self.uri, "PYTHONPATH": PYTHONPATH, "COLUMNS": "200"}
        named = (
            {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": self.password(user)}
            if user
            else {}
        )
        return {**stored, **local, **named}

    def call(
        self, user: str, *arguments: str, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "experiments", *arguments]
        return warm.run(command, self.environment(user), cwd or self.accounts)

    def admin(self, **values: str) -> subprocess.CompletedProcess[str]:
        return self.call(
            "admin",
            "admin",
            f"--output={self.accounts}",
            *(f"--{name}={text}" for name, text in values.items()),
        )

    def ask(self, user: str, method: str, address: str, **named: object) -> requests.Response:
        words = (user, self.password(user)) if user else None
        options: Any = {"auth": words, "timeout": 30, **named}
        return requests.request(method, f"{self.uri}{address}", **options)


def add_teams(made: Group, of_team: dict[str, str]) -> None:
    """Create teams of a user each."""
    with ThreadPoolExecutor(len(of_team)) as at_once:
        for done in at_once.map(lambda team: made.admin(action="add_team", team=team), of_team):
            assert done.returncode == 0, done.stdout + done.stderr
    for team, user in of_team.items():  # one after the other: each reads the list of users
        done = made.admin(action="add_user", user=user, team=team)
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
    (folder / "secrets.json").write_text(json.dumps({"admin_password": password}))
    key = secrets.token_hex()
    drawn = {"MLFLOW_AUTH_ADMIN_PASSWORD": password, "MLFLOW_FLASK_SERVER_SECRET_KEY": key}
    environment = made.environment("") | drawn | named
    if accounts_uri:
        authentication.write_settings(folder / "accounts.ini", accounts_uri)
        environment["MLFLOW_AUTH_CONFIG_PATH"] = str(folder / "accounts.ini")
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "evenhand"]
    command += ["--port", str(port), "--artifacts-destination", str(folder / "artifacts"), *options]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    (folder / "server.pid").write_text(str(process.pid))
    try:
        wait_for(lambda: process.poll() is not None or is_ready(made), 90)
        assert process.poll() is None, (folder / "server.log").read_text()
        yield made
    finally:
        process.terminate()
        process.wait(20)


def is_ready(group: Group) -> bool:
    try:
        return requests.get(f"{group.uri}/ready", timeout=5).status_code == 200
    except requests.RequestException:
        return False


def ask(
    group: Group,
    words: tuple[str, str] | None,
    method: str,
    path: str,
    body: bytes = b"",
    source: str = "127.0.0.1",
) -> tuple[int, str]:
    """Return status and text of a request that no library tidies up."""
    netloc = urlsplit(group.uri).netloc
    connection = HTTPConnection(netloc, timeout=60, source_address=(source, 0))
    headers = {"Content-Type": "application/json"}
    if words:
        headers["Authorization"] = f"Basic {b64encode(':'.join(words).encode()).decode()}"
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    connection.close()
    return answer.status, text


def raw(group: Group, head: str, body: bytes) -> int:
    """Return the status of a request with exactly these headers, and those that name its sender."""
    words = b64encode(f"bob:{group.password('bob')}".encode()).decode()
    netloc = urlsplit(group.uri).netloc
    with socket.create_connection(("127.0.0.1", int(netloc.rpartition(":")[2])), 30) as connection:
        first, _, headers = head.partition("\n")
        local = f"Host: {netloc}\nAuthorization: Basic {words}\nConnection: close\n"
        text = f"{first} HTTP/1.1\n{local}{headers}\n\n".replace("\n", "\r\n")
        connection.sendall(text.encode() + body)
        return int(connection.makefile("rb").readline().split()[1])


class Team:
    """Team with a user, and an experiment with a run, a file and a logged model."""

    def __init__(self, group: Group, user: str, team: str) -> None:
        self.group, self.user, self.team = group, user, team
        named = {"experiment_name": f"{team}/captioning"}
        results = group.ask(user, "GET", f"{API}/experiments/get-by-name", params=named)
        self.experiment = str(results.json()["experiment"]["experiment_id"])
        self.run = self.post("runs/create", experiment_id=self.experiment)["run"]["info"]["run_id"]
        model = {"name": "kept", "source_run_id": self.run}
        made = self.post("logged-models", experiment_id=self.experiment, **model)
        self.model = made["model"]["info"]["model_id"]
        artifacts = "/api/2.0/mlflow-artifacts/artifacts"
        self.file = f"{artifacts}/{self.experiment}/{self.run}/artifacts/note.txt"
        group.ask(user, "PUT", self.file, data=b"kept").raise_for_status()

    def post(self, action: str, **sent: object) -> Any:
        answer = self.group.ask(self.user, "POST", f"{API}/{action}", json=sent)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def tries(self, method: str, path: str, sent: object = None) -> tuple[int, str]:
        body = {} if sent is None else {"json": sent}
        answer = self.group.ask(self.user, method, path, **body)
        return answer.status_code, answer.text
