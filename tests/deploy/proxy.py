"""nginx as compose has it before a group's server: TLS with a self-signed certificate."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    login: Login | None = None,
) -> Iterator[tuple[str, Path]]:
    """Nginx with both of compose's files, their places and ports replaced. Address and certificate.

    confined: a command that begins it with fewer rights.
    """
    shutil.copytree(
        ROOT / "deploy" / "compose",
        folder / "compose",
        ignore=shutil.ignore_patterns("secrets", "certificates", ".env"),
    )
    if login:
        (folder / "compose" / "secrets").mkdir()
        for name, text in {"client_secret": "the provider's", "proxy_secret": login.secret}.items():
            (folder / "compose" / "secrets" / name).write_text(text)
    drawn = subprocess.run(
        ["sh", str(folder / "compose" / "secrets.sh"), "localhost"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert drawn.returncode == 0, drawn.stderr
    certificate = folder / "compose" / "certificates" / "server.crt"
    variables = {
        "SERVER_NAME": "localhost",
        "UPSTREAM": upstream,
        "RESOLVER": resolver,
        "PORT": str(port),
        "CERTIFICATES": str(certificate.parent),
        "LARGEST_UPLOAD": "1m",
        "LOGIN": login.address if login else "",
        "SECRETS": str(folder / "compose" / "secrets"),
    }
    templates = {"default.conf": (folder / "compose" / "nginx.conf.template").read_text()}
    if login:
        text = (folder / "compose" / "nginx.login.conf.template").read_text()
        templates["login.server"] = text
        if login.server:
            templates["default.conf"] = login.server.replace("8080", str(port))
    address = f"{'http' if login and login.server else 'https'}://localhost:{port}"
    with running_nginx(folder, templates, variables, confined):
        wait_for(lambda: answers(address, certificate), 20)
        yield address, certificate


@dataclass(frozen=True)
class Login:
    """Log-in by oauth2-proxy.

    Attributes:
        address: Of oauth2-proxy.
        secret: The proxy's.
        server: Template in place of compose's.
    """

    address: str
    secret: str
    server: str = ""


@contextmanager
def running_nginx(
    folder: Path, templates: dict[str, str], variables: dict[str, str], confined: Sequence[str]
) -> Iterator[None]:
    """Run nginx with compose's main file and these templates in conf.d, filled in."""
    (folder / "conf.d").mkdir()
    local = str(folder / "conf.d")
    for name, text in templates.items():
        filled = Template(text).safe_substitute(variables)
        (folder / "conf.d" / name).write_text(filled.replace("/etc/nginx/conf.d", local))
    main = (folder / "compose" / "nginx.conf").read_text()
    for place, name in {
        "/etc/nginx/conf.d": "conf.d",
        "/tmp/nginx.pid": "nginx.pid",
        "/dev/stderr": "error.log",
    }.items():
        assert place in main
        main = main.replace(place, f"{folder}/{name}")
    (folder / "nginx.conf").write_text(main.replace("/dev/stdout", f"{folder}/access.log"))
    command = [*confined, str(NGINX), "-c", str(folder / "nginx.conf"), "-p", str(folder)]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen([*command, "-g", "daemon off;"])
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


def answers(address: str, certificate: Path) -> bool:
    try:
        return requests.get(f"{address}/health", verify=certificate, timeout=5).status_code < 500
    except requests.RequestException:
        return False
