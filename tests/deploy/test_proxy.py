"""nginx with TLS in front of a server: compose's template, certificate, bound of uploads."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import requests

from tests.conftest import ROOT, wait_for
from tests.deploy.group import Group, free_port
from tests.deploy.proxy import started
from tests.deploy.test_files import WITH_CAPABILITIES, confined

pytestmark = pytest.mark.debian(package="nginx-light")


def test_secrets_are_private_and_drawn_once(
    nginx: tuple[str, Path],
) -> None:
    folder = nginx[1].parent.parent
    before = {path: path.read_text() for path in (folder / "secrets").iterdir()}
    assert len(set(before.values())) == 3
    assert {path.stat().st_mode & 0o777 for path in before} == {0o600}
    subprocess.run(["sh", str(folder / "secrets.sh")], check=True, capture_output=True)
    assert {path: path.read_text() for path in before} == before
    assert (folder / ".env").read_text() == "SERVER_NAME=localhost\n"


def secrets(folder: Path, *words: str, **named: str) -> subprocess.CompletedProcess[str]:
    stored = {name: text for name, text in os.environ.items() if name != "SERVER_NAME"}
    return subprocess.run(
        ["sh", str(folder / "secrets.sh"), *words],
        env=stored | named,
        capture_output=True,
        text=True,
    )


def test_secrets_of_a_login_are_drawn_for_a_client_secret(tmp_path: Path) -> None:
    shutil.copy(ROOT / "deploy" / "compose" / "secrets.sh", tmp_path)
    assert secrets(tmp_path, "mlflow.example.org").returncode == 0
    assert not (tmp_path / "secrets" / "proxy_secret").exists()
    (tmp_path / "secrets" / "client_secret").write_text("the provider's")
    assert secrets(tmp_path).returncode == 0
    drawn = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert len(drawn["cookie_secret"]) == 32, "oauth2-proxy takes 16, 24 or 32 bytes"
    line = f"proxy_set_header X-Evenhand-Proxy-Secret {drawn['proxy_secret'].strip()};\n"
    assert drawn["proxy_secret.conf"] == line
    assert (tmp_path / "secrets" / "proxy_secret").stat().st_mode & 0o777 == 0o600
    assert secrets(tmp_path).returncode == 0
    assert drawn == {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}


def test_certificate_names_the_server(tmp_path: Path) -> None:
    shutil.copy(ROOT / "deploy" / "compose" / "secrets.sh", tmp_path)
    for words in ((), ("",), ("two words",), ("-x",), ("$(id)",)):
        refused = secrets(tmp_path, *words)
        assert refused.returncode == 2
        assert "SERVER_NAME" in refused.stderr
        assert not (tmp_path / "certificates").exists()
    (tmp_path / ".env").write_text("OTHER=1\n")
    made = secrets(tmp_path, SERVER_NAME="mlflow.example.org")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / ".env").read_text() == "OTHER=1\nSERVER_NAME=mlflow.example.org\n"
    path = str(tmp_path / "certificates" / "server.crt")
    command = ["openssl", "x509", "-in", path, "-noout", "-ext", "subjectAltName"]
    names = subprocess.run(command, capture_output=True, text=True).stdout
    assert "DNS:mlflow.example.org" in names
    other = secrets(tmp_path, "other.example.org")
    assert other.returncode == 2
    assert "other.example.org" in other.stderr
    assert secrets(tmp_path).returncode == 0, "the name is known"


class Names:
    """Name server on loopback whose address changes."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while True:
            query, client = self._socket.recvfrom(512)
            question = query[12 : query.index(b"\0", 12) + 5]
            header = query[:2] + b"\x81\x80" + b"\0\1\0\1\0\0\0\0"
            ten_minutes = (600).to_bytes(4, "big")  # as Docker's name server sends it
            answer = b"\xc0\x0c\0\1\0\1" + ten_minutes + b"\0\4" + socket.inet_aton(self.address)
            self._socket.sendto(header + question + answer, client)


class Named(BaseHTTPRequestHandler):
    """Handler that answers with its address."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(self.connection.getsockname()[0]).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def isolated_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Names]]:
    """Yield nginx before two servers of one name, which stands for the first."""
    port, names = free_port(), Names("127.0.0.1")
    servers = [
        ThreadingHTTPServer((address, port), Named) for address in ("127.0.0.1", "127.0.0.2")
    ]
    for server in servers:
        Thread(target=server.serve_forever, daemon=True).start()
    folder = tmp_path_factory.mktemp("isolated")
    upstream, resolver = f"tracking.test:{port}", f"127.0.0.1:{names.port}"
    rights = confined("proxy") if WITH_CAPABILITIES else ()
    with started(folder, upstream, free_port(), resolver, rights) as (address, certificate):
        yield address, certificate, names
    for server in servers:
        server.shutdown()


def test_proxy_follows_a_changed_address(
    isolated_proxy: tuple[str, Path, Names],
) -> None:
    address, certificate, names = isolated_proxy

    def reached() -> set[str]:
        """Return the servers that nginx's workers reach, below the limit of requests."""
        time.sleep(1)
        return {requests.get(address, verify=certificate, timeout=10).text for _ in range(20)}

    assert reached() == {"127.0.0.1"}
    names.address = "127.0.0.2"
    wait_for(lambda: reached() == {"127.0.0.2"}, 60)


def half_open(port: int, context: ssl.SSLContext, number: int) -> socket.socket:
    """Open a connection that stops before TLS, or in the middle of its headers."""
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    if number % 2:
        made = context.wrap_socket(made, server_hostname="localhost")
        made.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    return made


def test_half_open_connections_are_dropped(
    isolated_proxy: tuple[str, Path, Names],
) -> None:
    address, certificate, _ = isolated_proxy
    context = ssl.create_default_context(cafile=str(certificate))
    began = time.monotonic()
    waiting = [half_open(int(address.rpartition(":")[2]), context, number) for number in range(600)]
    for _ in range(20):
        query = time.monotonic()
        assert requests.get(address, verify=certificate, timeout=10).status_code == 200
        assert time.monotonic() - query < 5
    for item in waiting:
        item.settimeout(30)
        with suppress(ConnectionResetError, ssl.SSLError):
            while item.recv(1_000):  # 408, then the end
                pass
    assert time.monotonic() - began < 30, (
        "10 s after each began, on a machine that has other work too"
    )
    for item in waiting:
        item.close()


def test_login_through_tls(group: Group, nginx: tuple[str, Path]) -> None:
    address, certificate = nginx
    user = ("alice", group.password("alice"))
    search = f"{address}/api/2.0/mlflow/experiments/search?max_results=5"
    assert requests.get(search, verify=certificate, timeout=30).status_code == 401
    answer = requests.get(search, auth=user, verify=certificate, timeout=30)
    assert answer.status_code == 200
    assert answer.headers["Strict-Transport-Security"]
    sent = {
        "json": {"experiment_ids": ["0"]},
        "auth": user,
        "headers": {"Origin": address},
        "verify": certificate,
    }
    search = f"{address}/api/2.0/mlflow/runs/search"
    changed = requests.post(search, timeout=30, **sent)  # type: ignore[arg-type]
    assert changed.status_code == 200, "the UI's own requests come from the proxy's address"
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(search, timeout=30)  # a certificate that nobody vouches for


def test_large_upload_and_foreign_name_are_refused(group: Group, nginx: tuple[str, Path]) -> None:
    address, certificate = nginx
    user = ("alice", group.password("alice"))
    path = f"{address}/api/2.0/mlflow-artifacts/artifacts/0/{'0' * 32}/artifacts/y"
    options = {"auth": user, "verify": certificate, "timeout": 30}
    assert requests.put(path, data=b"x" * 2_000_000, **options).status_code == 413
    assert requests.get(address, headers={"Host": "evil.example"}, **options).status_code == 421
