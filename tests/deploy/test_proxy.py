"""nginx with TLS before a real server: the template that compose uses, a self-signed certificate, a bound on uploads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import requests

from tests.deploy.group import Group
from tests.deploy.proxy import NGINX


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


def test_nginx_itself_judges_the_template(proxy: tuple[str, Path]) -> None:
    folder = proxy[1].parent.parent.parent
    wrong = folder / "wrong.conf"
    wrong.write_text((folder / "nginx.conf").read_text().replace("ssl_protocols", "ssl_protocol"))
    judged = subprocess.run([str(NGINX), "-c", str(wrong), "-p", str(folder), "-t"], capture_output=True, text=True)
    assert "unknown directive" in judged.stderr
