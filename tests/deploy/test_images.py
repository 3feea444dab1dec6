"""Digests of images, as a registry of this machine states them."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.conftest import ROOT

COMPOSE = ROOT / "deploy" / "compose"
TOKEN = "given to anybody"


def manifest(name: str) -> bytes:
    return json.dumps({"schemaVersion": 2, "of": name}).encode()


def digest(name: str) -> str:
    return f"sha256:{hashlib.sha256(manifest(name)).hexdigest()}"


class Registry(BaseHTTPRequestHandler):
    """The part of a registry that names digests; like Docker Hub it wants a token."""

    def do_HEAD(self) -> None:
        *_, tag = self.path.partition("/manifests/")
        repository = self.path.removeprefix("/v2/").partition("/manifests/")[0]
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.send_response(401)
            realm = f"http://{self.headers['Host']}/token"
            scope = f"repository:{repository}:pull"
            words = f'Bearer realm="{realm}",service="registry",scope="{scope}"'
            self.send_header("WWW-Authenticate", words)
        elif repository == "missing":
            self.send_response(404)
        else:
            assert "application/vnd.oci.image.index.v1+json" in self.headers["Accept"]
            self.send_response(200)
            self.send_header("Docker-Content-Digest", digest(f"{repository}:{tag}"))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        assert self.path.startswith("/token?service=registry&scope=repository%3A")
        body = json.dumps({"token": TOKEN}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


def update(folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "images.py"), *files]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.fixture
def folder(tmp_path: Path, registry: str) -> Path:
    """Compose's folder, with images of the registry."""
    shutil.copy(COMPOSE / "images.py", tmp_path)
    text = (COMPOSE / "compose.yaml").read_text()
    for name in ("postgres:", "versity/", "nginx:", "python:"):
        assert f"_IMAGE:-{name}" in text
        text = text.replace(f"_IMAGE:-{name}", f"_IMAGE:-{registry}/{name}")
    (tmp_path / "compose.yaml").write_text(text)
    return tmp_path


def test_composes_images_get_their_digests_in_env(folder: Path, registry: str) -> None:
    (folder / ".env").write_text(f"SERVER_NAME=localhost\nNGINX_IMAGE=old@sha256:{'0' * 64}\n")
    done = update(folder, ".env")
    assert done.returncode == 0, done.stderr
    lines = (folder / ".env").read_text().splitlines()
    assert lines[0] == "SERVER_NAME=localhost"
    assert dict(line.split("=", 1) for line in lines[1:]) == {
        f"{variable}_IMAGE": f"{registry}/{name.partition(':')[0]}@{digest(name)}"
        for variable, name in {
            "NGINX": "nginx:1.28-alpine",
            "POSTGRES": "postgres:17-alpine",
            "PYTHON": "python:3.11-slim-trixie",
            "STORE": "versity/versitygw:v1.8.0",
        }.items()
    }
    assert update(folder, ".env").stdout == ".env: unchanged\n"


def test_a_manifests_images_get_their_digests_in_place(folder: Path, registry: str) -> None:
    text = (ROOT / "deploy" / "kubernetes" / "evenhand.yaml").read_text()
    local = text.replace("image: postgres:", f"image: {registry}/postgres:")
    local = local.replace("image: versity/", f"image: {registry}/versity/")
    (folder / "evenhand.yaml").write_text(local)
    assert update(folder, "evenhand.yaml").returncode == 0
    pinned = (folder / "evenhand.yaml").read_text()
    for name in ("postgres:17-alpine", "versity/versitygw:v1.8.0"):
        assert f"image: {registry}/{name}@{digest(name)}\n" in pinned
        pinned = pinned.replace(f"@{digest(name)}", "")
    assert pinned == local, "nothing else is changed, our own image included"
    assert update(folder, "evenhand.yaml").stdout == "evenhand.yaml: unchanged\n"


def test_nothing_is_written_where_a_registry_does_not_answer(folder: Path, registry: str) -> None:
    (folder / ".env").write_text("SERVER_NAME=localhost\n")
    for image in (f"{registry}/missing:1", "127.0.0.1:9/postgres:17"):
        (folder / "one.yaml").write_text(f"image: {image}\n")
        done = update(folder, ".env", "one.yaml")
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert f"{image}: " in done.stderr
        assert (folder / ".env").read_text() == "SERVER_NAME=localhost\n"
    assert update(folder, "missing.yaml").returncode == 2
