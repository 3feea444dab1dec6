"""Python as the server runs it: the caller's, or a copy if the server's user cannot reach that one."""

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
from deploy.native.folder import Folder, Refused, last_line

CODE = Path(__file__).resolve().parent.parent
ROOT = CODE.parent
# Parts of the standard library that a server never imports, and that take half of its disk space.
UNUSED = shutil.ignore_patterns(
    "site-packages", "test", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip", "config-*"
)
CHECK_SECONDS = 120


@dataclass(frozen=True)
class Interpreter:
    """An executable, and the environment variables with which it finds the server's code."""

    executable: str
    environment: dict[str, str]


def reachable(owner: Account | None, folder: Folder) -> Interpreter:
    """Return the caller's Python; a copy in the server's folder if its user cannot enter that.

    Raises:
        Refused: The copy cannot be made, or does not work.
    """
    mlflow = find_spec("mlflow")
    base, packages = _executable(), Path(str(mlflow and mlflow.origin))
    needed = (base, Path(sys.executable), Path(os.__file__), packages, CODE)
    if owner is None or not any(account.closed(owner, path) for path in needed):
        return Interpreter(sys.executable, {"PYTHONPATH": str(ROOT)})
    copy, key = folder.python, _key()
    environment = {
        "PYTHONPATH": str(copy / "packages"),
        "PYTHONNOUSERSITE": "1",
        "LD_LIBRARY_PATH": str(copy / "lib"),
    }
    interpreter = Interpreter(str(copy / "bin" / base.name), environment)
    if not (copy / key).exists():
        print(
            f"{owner.name} cannot enter the folder of Python: it gets a copy in {copy}", flush=True
        )
        _copy(copy, key)
        _check(interpreter)
    return interpreter


def _copy(target: Path, key: str) -> None:
    """Copy Python, the packages that the server needs and its code; a copy has its key in it."""
    making = target.with_name(f"{target.name}.new")
    for path in (making, target):
        shutil.rmtree(path, ignore_errors=True)
    for distribution in _distributions().values():
        _copy_distribution(distribution, making / "packages")
    shutil.copytree(CODE, making / "packages" / CODE.name, ignore=UNUSED)
    prefix, library = Path(sys.base_prefix), Path(os.__file__).parent
    _link_file(_executable(), making / "bin" / _executable().name)
    for shared in prefix.glob("lib/*.so*"):
        _link_file(shared, making / "lib" / shared.name)
    copied = making / library.relative_to(prefix)
    shutil.copytree(library, copied, ignore=UNUSED, copy_function=_link_file)
    account.open_for_reading(making)
    (making / key).touch()
    making.rename(target)


def _key() -> str:
    """Return a file name that changes with everything that is copied."""
    versions = sorted(f"{name} {found.version}" for name, found in _distributions().items())
    code = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(CODE.rglob("*.py"))]
    text = json.dumps([sys.version, str(_executable()), versions, code])
    return f"copied-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _executable() -> Path:
    """Return the interpreter behind a virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _distributions() -> dict[str, metadata.Distribution]:
    """Return what the extra `server` requires, directly or not, by normalised name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    waiting = [Requirement(text) for text in ("mlflow", "boto3", *extras["server"])]
    found = dict[str, metadata.Distribution]()
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name == project["name"]:  # an extra that names others of the project's
            waiting += [Requirement(text) for extra in requirement.extras for text in extras[extra]]
        elif name not in found:
            with suppress(metadata.PackageNotFoundError):  # an optional one: the check decides
                found[name] = metadata.distribution(requirement.name)
                waiting += _required(found[name], requirement.extras)
    return found


def _required(distribution: metadata.Distribution, extras: set[str]) -> Iterator[Requirement]:
    for text in distribution.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def _copy_distribution(distribution: metadata.Distribution, target: Path) -> None:
    """Copy the files that a package has installed, without its tests and bytecode."""
    if distribution.files is None:
        name = distribution.metadata["Name"]
        raise Refused(
            f"{name} does not list its files; install it with pip in a virtual environment"
        )
    for file in distribution.files:
        is_code = file.suffix not in (".pyc", ".pth") and "tests" not in file.parts
        if is_code and file.parts[0] != "..":
            _link_file(Path(str(distribution.locate_file(file))), target / file)


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
    """Import the server, which leaves its bytecode in the copy. Raises Refused if that fails."""
    command = [interpreter.executable, "-c", "import deploy.guard.app"]
    done = subprocess.run(
        command,
        env=interpreter.environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=CHECK_SECONDS,
    )
    if done.returncode:
        right = "keep Python where every user may read, such as /opt"
        reason = last_line(done.stderr)
        raise Refused(f"the server's copy of Python does not work: {reason}; {right}")
