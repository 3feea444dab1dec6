"""nginx with TLS in front of a server: compose's template, certificate, bound of uploads."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from tests.conftest import ROOT
from tests.deploy.group import FILES, Group

pytestmark = pytest.mark.debian(package="nginx-light")


@pytest.fixture
def compose(tmp_path: Path) -> Path:
    """Return a folder with compose's script, without secrets."""
    shutil.copy(ROOT / "deploy" / "compose" / "secrets.sh", tmp_path)
    return tmp_path


def draw(folder: Path, *words: str, **named: str) -> subprocess.CompletedProcess[str]:
    stored = {name: text for name, text in os.environ.items() if name != "SERVER_NAME"}
    command = ["sh", str(folder / "secrets.sh"), *words]
    return subprocess.run(command, env=stored | named, capture_output=True, text=True)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_secrets_are_private_and_drawn_once(compose: Path) -> None:
    """Draw those of a log-in when there is a client secret."""
    secrets = compose / "secrets"
    assert draw(compose, "mlflow.example.org").returncode == 0
    before = contents(secrets)
    assert len(set(before.values())) == len(before) == 3
    (secrets / "client_secret").write_text("the provider's")
    for _ in range(2):
        assert draw(compose).returncode == 0
        drawn = contents(secrets)
        assert before.items() <= drawn.items()
        before = drawn
    assert {path.stat().st_mode & 0o777 for path in secrets.glob("*[!t]_secret")} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in secrets.glob("*_password")} == {0o600}
    assert len(drawn["cookie_secret"]) == 32, "oauth2-proxy takes 16, 24 or 32 bytes"
    line = f"proxy_set_header X-Evenhand-Proxy-Secret {drawn['proxy_secret'].strip()};\n"
    assert drawn["proxy_secret.conf"] == line


def test_certificate_names_the_server(compose: Path) -> None:
    for words in ((), ("",), ("two words",), ("-x",), ("$(id)",)):
        refused = draw(compose, *words)
        assert (refused.returncode, "SERVER_NAME" in refused.stderr) == (2, True)
        assert not (compose / "certificates").exists()
    (compose / ".env").write_text("OTHER=1\n")
    made = draw(compose, SERVER_NAME="mlflow.example.org")
    assert made.returncode == 0, made.stderr
    assert (compose / ".env").read_text() == "OTHER=1\nSERVER_NAME=mlflow.example.org\n"
    path = str(compose / "certificates" / "server.crt")
    command = ["openssl", "x509", "-in", path, "-noout", "-ext", "subjectAltName"]
    assert b"DNS:mlflow.example.org" in subprocess.run(command, capture_output=True).stdout
    other = draw(compose, "other.example.org")
    assert (other.returncode, "other.example.org" in other.stderr) == (2, True)
    assert draw(compose).returncode == 0, "the name is known"


def test_half_open_connections_are_dropped(nginx: tuple[str, Path]) -> None:
    """Open connections that stop before TLS, and in the middle of their headers."""
    address, certificate = nginx
    context = ssl.create_default_context(cafile=str(certificate))
    port, began, waiting = int(address.rpartition(":")[2]), time.monotonic(), list[socket.socket]()
    for _ in range(300):
        silent, slow = (socket.create_connection(("127.0.0.1", port), timeout=30) for _ in "ab")
        encrypted = context.wrap_socket(slow, server_hostname="localhost")
        encrypted.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        waiting += [silent, encrypted]
    for _ in range(20):
        query = time.monotonic()
        health = requests.get(f"{address}/health", verify=certificate, timeout=10)
        assert health.status_code == 200
        assert time.monotonic() - query < 5
    for item in waiting:
        with item, suppress(ConnectionResetError, ssl.SSLError):
            while item.recv(1_000):  # 408, then the end
                pass
    assert time.monotonic() - began < 30, "10 s after each began, on a busy machine"


def test_proxy_encrypts_and_bounds_requests(group: Group, nginx: tuple[str, Path]) -> None:
    address, certificate = nginx
    with requests.Session() as session:
        session.verify, session.trust_env = str(certificate), False
        search = f"{address}/api/2.0/mlflow/experiments/search?max_results=5"
        assert session.get(search).status_code == 401
        session.auth = ("alice", group.password("alice"))
        answer = session.get(search)
        assert answer.status_code == 200
        assert answer.headers["Strict-Transport-Security"]
        search, sent = f"{address}/api/2.0/mlflow/runs/search", {"experiment_ids": ["0"]}
        page = session.post(search, json=sent, headers={"Origin": address})
        assert page.status_code == 200, "the UI's own requests come from the proxy's address"
        path = f"{address}{FILES}/0/{'0' * 32}/artifacts/y"
        assert session.put(path, data=b"x" * 2_000_000).status_code == 413
        assert session.get(address, headers={"Host": "evil.example"}).status_code == 421
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(search, timeout=30)  # a certificate that nobody vouches for
