"""nginx as compose has it before a group's server: TLS with a self-signed certificate."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template

from tests import debian
from tests.conftest import ROOT, wait_for
from tests.deploy.group import answers

NGINX = debian.path_of("nginx")


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
def started(
    folder: Path,
    upstream: str,
    port: int,
    confined: Sequence[str] = (),
    login: Login | None = None,
) -> Iterator[tuple[str, Path]]:
    """Yield address and certificate of nginx with compose's files, places and ports replaced.

    Args:
        folder: Of its files.
        upstream: Address of the server.
        port: On which it listens.
        confined: Command that begins it with fewer rights.
        login: Log-in before the server.
    """
    compose, conf = folder / "compose", folder / "conf.d"
    ignored = shutil.ignore_patterns("secrets", "certificates", ".env")
    shutil.copytree(ROOT / "deploy" / "compose", compose, ignore=ignored)
    templates = {"default.conf": (compose / "nginx.conf.template").read_text()}
    if login:
        (compose / "secrets").mkdir()
        (compose / "secrets" / "client_secret").write_text("the provider's")
        (compose / "secrets" / "proxy_secret").write_text(login.secret)
        templates["login.server"] = (compose / "nginx.login.conf.template").read_text()
    if login and login.server:
        templates["default.conf"] = login.server.replace("8080", str(port))
    command = ["sh", str(compose / "secrets.sh"), "localhost"]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert drawn.returncode == 0, drawn.stderr
    certificate = compose / "certificates" / "server.crt"
    variables = {
        "SERVER_NAME": "localhost",
        "UPSTREAM": upstream,
        "RESOLVER": "127.0.0.1",
        "PORT": str(port),
        "CERTIFICATES": str(certificate.parent),
        "LARGEST_UPLOAD": "1m",
        "LOGIN": login.address if login else "",
        "SECRETS": str(compose / "secrets"),
    }
    conf.mkdir()
    for name, text in templates.items():
        filled = Template(text).safe_substitute(variables)
        (conf / name).write_text(filled.replace("/etc/nginx/conf.d", str(conf)))
    main = (compose / "nginx.conf").read_text()
    places = {"/etc/nginx/conf.d": "conf.d", "/tmp/nginx.pid": "nginx.pid"}
    for place, name in {**places, "/dev/stderr": "error.log", "/dev/stdout": "access.log"}.items():
        assert place in main
        main = main.replace(place, f"{folder}/{name}")
    (folder / "nginx.conf").write_text(main)
    command = [*confined, str(NGINX), "-c", str(folder / "nginx.conf"), "-p", str(folder)]
    process = subprocess.Popen([*command, "-g", "daemon off;"])
    address = f"{'http' if login and login.server else 'https'}://localhost:{port}"
    try:
        wait_for(lambda: answers(f"{address}/health", verify=str(certificate)), 20)
        yield address, certificate
    finally:
        process.terminate()
        process.wait(10)
