"""nginx with TLS before a real server: the template that compose uses, a self-signed certificate, a bound on uploads."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from string import Template

import pytest
import requests

from tests.conftest import ROOT, wait_for
from tests.deploy.conftest import Group

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
MISSING = "" if NGINX and shutil.which("openssl") else "nginx or openssl is not installed"


@pytest.fixture(scope="module")
def proxy(group: Group, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address and certificate."""
    if MISSING:
        pytest.skip(MISSING)
    folder = tmp_path_factory.mktemp("nginx")
    shutil.copytree(ROOT / "deploy" / "compose", folder / "compose", ignore=shutil.ignore_patterns("secrets", "certificates"))
    drawn = subprocess.run(["sh", str(folder / "compose" / "secrets.sh")], capture_output=True, text=True, timeout=60)
    assert drawn.returncode == 0, drawn.stderr
    filled = {
        "SERVER_NAME": "localhost",
        "UPSTREAM": group.uri.removeprefix("http://"),
        "PORT": str(group.proxy_port),
        "CERTIFICATES": str(folder / "compose" / "certificates"),
        "LARGEST_UPLOAD": "1m",
    }
    server = Template((folder / "compose" / "nginx.conf.template").read_text()).safe_substitute(filled)
    logs = f"error_log {folder}/error.log; pid {folder}/nginx.pid;"
    (folder / "nginx.conf").write_text(f"{logs} events {{}} http {{ access_log off; {server} }}")
    command = [str(NGINX), "-c", str(folder / "nginx.conf"), "-p", str(folder)]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    (folder / "wrong.conf").write_text((folder / "nginx.conf").read_text().replace("ssl_protocols", "ssl_protocol"))
    wrong = subprocess.run(
        [str(NGINX), "-c", str(folder / "wrong.conf"), "-p", str(folder), "-t"], capture_output=True, text=True
    )
    assert "unknown directive" in wrong.stderr
    process = subprocess.Popen([*command, "-g", "daemon off;"])
    address, certificate = f"https://localhost:{group.proxy_port}", folder / "compose" / "certificates" / "server.crt"
    wait_for(lambda: answers(address, certificate), 20)
    yield address, certificate
    process.terminate()
    process.wait(10)


def answers(address: str, certificate: Path) -> bool:
    try:
        return requests.get(f"{address}/health", verify=certificate, timeout=5).ok
    except requests.RequestException:
        return False


def test_the_drawn_secrets_are_their_owners_alone_and_not_drawn_twice(proxy: tuple[str, Path]) -> None:
    folder = proxy[1].parent.parent
    before = {path: path.read_text() for path in (folder / "secrets").iterdir()}
    assert len(set(before.values())) == 4
    assert {path.stat().st_mode & 0o777 for path in before} == {0o600}
    subprocess.run(["sh", str(folder / "secrets.sh")], check=True, capture_output=True)
    assert {path: path.read_text() for path in before} == before


def test_names_and_passwords_go_through_tls(group: Group, proxy: tuple[str, Path]) -> None:
    address, certificate = proxy
    user = ("alice", group.password("alice"))
    search = f"{address}/api/2.0/mlflow/experiments/search?max_results=5"
    assert requests.get(search, verify=certificate, timeout=30).status_code == 401
    answer = requests.get(search, auth=user, verify=certificate, timeout=30)
    assert answer.status_code == 200
    assert answer.headers["Strict-Transport-Security"]
    sent = {"json": {"experiment_ids": ["0"]}, "auth": user, "headers": {"Origin": address}, "verify": certificate}
    changed = requests.post(f"{address}/api/2.0/mlflow/runs/search", timeout=30, **sent)  # type: ignore[arg-type]
    assert changed.status_code == 200, "the UI's own requests come from the proxy's address"
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(search, timeout=30)  # a certificate that nobody vouches for


def test_too_large_an_upload_and_a_foreign_name_are_refused(group: Group, proxy: tuple[str, Path]) -> None:
    address, certificate = proxy
    user = ("alice", group.password("alice"))
    path = f"{address}/api/2.0/mlflow-artifacts/artifacts/0/x/artifacts/y"
    assert requests.put(path, data=b"x" * 2_000_000, auth=user, verify=certificate, timeout=30).status_code == 413
    foreign = requests.get(address, headers={"Host": "evil.example"}, verify=certificate, timeout=30)
    assert foreign.status_code == 421
