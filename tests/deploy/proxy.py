"""nginx as compose has it before a group's server: TLS with a self-signed certificate."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template

import requests

from tests.conftest import ROOT, wait_for
from tests.deploy.group import Group

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
MISSING = "" if NGINX and shutil.which("openssl") else "nginx or openssl is not installed"


@contextmanager
def running(group: Group, folder: Path) -> Iterator[tuple[str, Path]]:
    """Address and certificate."""
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
