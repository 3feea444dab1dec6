"""Python as the server runs it: the caller's, or a private copy where the server's user cannot reach the caller's."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from deploy.native import account
from deploy.native.account import Account
from deploy.native.folder import Folder, Refused

CODE = Path(__file__).resolve().parent.parent
ROOT = CODE.parent
# Parts of the standard library that a server never imports, and that take half of its disk space.
UNUSED = shutil.ignore_patterns("site-packages", "test", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip", "config-*")
CHECK_SECONDS = 120


@dataclass(frozen=True)
class Interpreter:
    """An executable, and the environment variables with which it finds the server's code."""

    executable: str
    environment: dict[str, str]


def of_caller() -> Interpreter:
    """The Python that runs this, with the code of this checkout."""
    return Interpreter(sys.executable, {"PYTHONPATH": str(ROOT)})


def reachable(owner: Account | None, folder: Folder) -> Interpreter:
    """The caller's Python; a copy in the server's folder where the server's user cannot enter it.

    Raises:
        Refused: the copy cannot be made, or does not work.
    """
    if owner is None:
        return of_caller()
    mlflow = find_spec("mlflow")
    packages = (CODE, Path(str(mlflow and mlflow.origin)), Path(sys.executable))
    base_closed = any(account.closed(owner, path) for path in (_executable(), Path(os.__file__)))
    if not base_closed and not any(account.closed(owner, path) for path in packages):
        return of_caller()
    return _Copy(folder.python, base_closed).refreshed(owner)


class _Copy:
    """A copy of the packages that the server needs; with has_base, of Python itself too."""

    def __init__(self, path: Path, has_base: bool) -> None:
        self._path = path
        self._has_base = has_base

    def refreshed(self, owner: Account) -> Interpreter:
        """Make the copy anew where Python, a package or the server's code has changed."""
        key = self._key()
        if not (self._path / key).exists():
            print(f"{owner.name} cannot enter the folder of Python: it gets a copy in {self._path}", flush=True)
            making = self._path.with_name(f"{self._path.name}.new")
            for path in (making, self._path):
                shutil.rmtree(path, ignore_errors=True)
            for distribution in _distributions().values():
                copy_distribution(distribution, making / "packages")
            shutil.copytree(CODE, making / "packages" / CODE.name, ignore=UNUSED)
            if self._has_base:
                _copy_base(making)
            account.open_for_reading(making)
            (making / key).touch()
            making.rename(self._path)
            _check(self._interpreter())
        return self._interpreter()

    def _interpreter(self) -> Interpreter:
        executable = _executable()
        environment = {"PYTHONPATH": str(self._path / "packages"), "PYTHONNOUSERSITE": "1"}
        if self._has_base:
            executable = self._path / "bin" / executable.name
            environment["LD_LIBRARY_PATH"] = str(self._path / "lib")
        return Interpreter(str(executable), environment)

    def _key(self) -> str:
        """A file name that changes with everything that is copied."""
        versions = sorted(f"{name} {found.version}" for name, found in _distributions().items())
        code = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(CODE.rglob("*.py"))]
        text = json.dumps([sys.version, str(_executable()), self._has_base, versions, code])
        return f"copied-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _executable() -> Path:
    """The interpreter behind a virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _distributions() -> dict[str, metadata.Distribution]:
    """Everything that the extra `server` asks for and what that asks for in turn, by normalised name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [Requirement(text) for text in ("mlflow", "boto3", *_flat(project["optional-dependencies"], "server"))]
    found = dict[str, metadata.Distribution]()
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            continue  # an optional one: the check of the copy decides
        waiting += _required(found[name], requirement.extras)
    return found


def _flat(extras: dict[str, list[str]], name: str) -> Iterator[str]:
    """The requirements of an extra, with those of the project's other extras that it names."""
    for text in extras[name]:
        own = Requirement(text)
        if own.name == "evenhand":
            for other in own.extras:
                yield from _flat(extras, other)
        else:
            yield text


def _required(distribution: metadata.Distribution, extras: set[str]) -> Iterator[Requirement]:
    for text in distribution.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def copy_distribution(distribution: metadata.Distribution, target: Path) -> None:
    """Copy what a package has installed beside others, but for its tests and bytecode.

    Raises:
        Refused: the package does not list its files.
    """
    if distribution.files is None:
        name = distribution.metadata["Name"]
        raise Refused(f"{name} does not list its files; install it with pip in a virtual environment")
    for file in distribution.files:
        if file.parts[0] != ".." and file.suffix not in (".pyc", ".pth") and "tests" not in file.parts:
            _link_file(Path(str(distribution.locate_file(file))), target / file)


def _copy_base(target: Path) -> None:
    """The executable, the standard library, and the shared libraries beside it."""
    prefix, library = Path(sys.base_prefix), Path(os.__file__).parent
    _link_file(_executable(), target / "bin" / _executable().name)
    for shared in prefix.glob("lib/*.so*"):
        _link_file(shared, target / "lib" / shared.name)
    copied = target / library.relative_to(prefix)
    shutil.copytree(library, copied, ignore=UNUSED, copy_function=_link_file)


def _link_file(source: str | Path, target: str | Path) -> None:
    """Link a file that only root writes and everyone reads, which takes no space; copy others.

    Installers replace files and do not write into them, so that a linked one stays as it was.
    """
    source, target = Path(source).resolve(), Path(target)
    if target.exists():  # two packages list it
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    about = source.stat()
    if about.st_uid == 0 and about.st_mode & 0o026 == 0o004:
        with suppress(OSError):  # another file system
            os.link(source, target)
            return
    shutil.copy(source, target)


def _check(interpreter: Interpreter) -> None:
    """Import the server, which leaves its bytecode in the copy. Raises Refused where that fails."""
    command = [interpreter.executable, "-c", "import deploy.guard.app"]
    done = subprocess.run(command, env=interpreter.environment, cwd="/", capture_output=True, text=True, timeout=CHECK_SECONDS)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["?"])[-1][:300]
        right = "keep Python where every user may read, such as /opt"
        raise Refused(f"the server's copy of Python does not work: {reason}; {right}")
