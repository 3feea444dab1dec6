"""nginx as compose has it before a group's server: TLS with a self-signed certificate."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import Template

import requests

from tests import debian
from tests.conftest import ROOT, wait_for
from tests.deploy.group import Group

NGINX = debian.path_of("nginx")


@contextmanager
def running(group: Group, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield address and certificate."""
    with started(folder, group.uri.removeprefix("http://"), group.proxy_port) as results:
        yield results


@contextmanager
def started(
    folder: Path,
    upstream: str,
    port: int,
    resolver: str = "127.0.0.1",
    confined: Sequence[str] = (),
) -> Iterator[tuple[str, Path]]:
    """Nginx with both of compose's files, their places and ports replaced. Address and certificate.

    confined: a command that begins it with fewer rights.
    """
    shutil.copytree(
        ROOT / "deploy" / "compose",
        folder / "compose",
        ignore=shutil.ignore_patterns("secrets", "certificates", ".env"),
    )
    drawn = subprocess.run(
        ["sh", str(folder / "compose" / "secrets.sh"), "localhost"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert drawn.returncode == 0, drawn.stderr
    filled = {
        "SERVER_NAME": "localhost",
        "UPSTREAM": upstream,
        "RESOLVER": resolver,
        "PORT": str(port),
        "CERTIFICATES": str(folder / "compose" / "certificates"),
        "LARGEST_UPLOAD": "1m",
    }
    (folder / "conf.d").mkdir()
    server = Template((folder / "compose" / "nginx.conf.template").read_text()).safe_substitute(
        filled
    )
    (folder / "conf.d" / "default.conf").write_text(server)
    main = (folder / "compose" / "nginx.conf").read_text()
    for place, local in {
        "/etc/nginx/conf.d": "conf.d",
        "/tmp/nginx.pid": "nginx.pid",
        "/dev/stderr": "error.log",
    }.items():
        assert place in main
        main = main.replace(place, f"{folder}/{local}")
    (folder / "nginx.conf").write_text(main.replace("/dev/stdout", f"{folder}/access.log"))
    command = [*confined, str(NGINX), "-c", str(folder / "nginx.conf"), "-p", str(folder)]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen([*command, "-g", "daemon off;"])
    address, certificate = (
        f"https://localhost:{port}",
        folder / "compose" / "certificates" / "server.crt",
    )
    try:
        wait_for(lambda: answers(address, certificate), 20)
        yield address, certificate
    finally:
        process.terminate()
        process.wait(10)


def answers(address: str, certificate: Path) -> bool:
    try:
        return requests.get(f"{address}/health", verify=certificate, timeout=5).status_code < 500
    except requests.RequestException:
        return False
