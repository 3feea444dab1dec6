"""Digests of images: `python images.py .env|MANIFEST.yaml …`, for compose and for Kubernetes.

Asks each image's registry what its tag stands for now, and writes the digests into the files. A
manifest's images get them in their place. Another file gets a line NAME_IMAGE=… for each image of
compose.yaml, which reads them from .env. Nothing is written unless every registry answers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path

COMPOSE = Path(__file__).with_name("compose.yaml")
DONE, FAILED, WRONG_CALL = 0, 1, 2
SECONDS = 30
# ${POSTGRES_IMAGE:-postgres:17-alpine}
VARIABLE = re.compile(r"\$\{(\w+_IMAGE):-([^}@\s]+)\}")
# image: postgres:17-alpine@sha256:…
PLACE = re.compile(r"(?m)^(\s*(?:- )?image: )([^\s@${}]+)(@sha256:[0-9a-f]{64})?$")
OWN = "evenhand-"  # built here: no registry has it
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
HUB, HUB_REGISTRY = "docker.io", "registry-1.docker.io"
KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class Unresolved(Exception):
    """An image without a digest, and why."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="images.py", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help=".env of compose, or manifests")
    files: list[Path] = parser.parse_args(arguments).files
    try:
        texts = {path: _text(path) for path in files}
        new = {path: _updated(path, text) for path, text in texts.items()}
    except (Unresolved, OSError) as error:
        print(f"images.py: {error}; nothing was written", file=sys.stderr)
        return FAILED if isinstance(error, Unresolved) else WRONG_CALL
    for path, text in new.items():
        _write(path, text)
        print(f"{path}: {'updated' if text != texts[path] else 'unchanged'}")
    return DONE


def _text(path: Path) -> str:
    return path.read_text() if path.exists() or _is_manifest(path) else ""


def _is_manifest(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml")


def _updated(path: Path, text: str) -> str:
    if _is_manifest(path):
        return PLACE.sub(_pinned, text)
    images = dict(VARIABLE.findall(COMPOSE.read_text()))
    kept = [line for line in text.splitlines() if line.partition("=")[0] not in images]
    # The Compose Specification knows an image by tag or by digest; Kubernetes takes both.
    digests = {name: (image.rpartition(":")[0], digest(image)) for name, image in images.items()}
    pinned = [f"{name}={image}@{found}" for name, (image, found) in sorted(digests.items())]
    return "\n".join([*kept, *pinned, ""])


def _pinned(place: re.Match[str]) -> str:
    before, image, _ = place.groups()
    return place[0] if image.startswith(OWN) else f"{before}{image}@{digest(image)}"


def digest(image: str) -> str:
    """Return the digest of an image's tag, as its registry states it now."""
    registry, repository, tag = _parts(image)
    # Docker, too, speaks HTTP with a registry of this machine.
    is_local = registry.partition(":")[0] in ("localhost", "127.0.0.1")
    address = f"{'http' if is_local else 'https'}://{registry}/v2/{repository}/manifests/{tag}"
    request = urllib.request.Request(address, method="HEAD", headers={"Accept": ", ".join(KINDS)})
    try:
        try:
            answer = urllib.request.urlopen(request, timeout=SECONDS)
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            request.add_header("Authorization", f"Bearer {_token(error)}")
            answer = urllib.request.urlopen(request, timeout=SECONDS)
        with answer:
            found = str(answer.headers.get("Docker-Content-Digest", ""))
    except (OSError, ValueError, KeyError) as error:
        reason = getattr(error, "reason", None) or error
        raise Unresolved(f"{image}: {registry} did not answer: {reason}") from None
    if not DIGEST.fullmatch(found):
        raise Unresolved(f"{image}: {registry} names no digest")
    return found


def _parts(image: str) -> tuple[str, str, str]:
    """Return registry, repository and tag, as Docker reads them."""
    first, slash, rest = image.partition("/")
    if not slash or not (set(".:") & set(first) or first == "localhost"):
        first, rest = HUB, image if slash else f"library/{image}"
    repository, _, tag = rest.partition(":")
    return HUB_REGISTRY if first == HUB else first, repository, tag or "latest"


def _token(refused: urllib.error.HTTPError) -> str:
    """Return the token that a registry gives to anybody who asks where it says."""
    words = dict(CHALLENGE.findall(refused.headers.get("WWW-Authenticate", "")))
    query = urllib.parse.urlencode({"service": words.get("service", ""), "scope": words["scope"]})
    with urllib.request.urlopen(f"{words['realm']}?{query}", timeout=SECONDS) as answer:
        given = json.load(answer)
    return str(given.get("token") or given["access_token"])


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    if path.exists():
        temporary.chmod(path.stat().st_mode & 0o777)
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
