"""Python for the server's user: the caller's, or a copy if that user cannot reach the caller's."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import sys
from contextlib import suppress
from importlib import metadata
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.native import account
from deploy.native.folder import Folder

CODE = Path(__file__).resolve().parent.parent
PACKAGES = ("mlflow", "boto3", "flask-wtf", "psycopg2-binary", "uvloop")
UNUSED = shutil.ignore_patterns(
    "site-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "config-*"
)


def command(owner: pwd.struct_passwd | None, folder: Folder) -> tuple[str, dict[str, str]]:
    """Return Python's path and the environment in which it imports the server's code.

    Root's Python may be closed to the server's user. Nothing of it is opened: the user gets a copy
    in the server's folder, which is made again when Python, a package or this code changes.
    """
    mlflow = find_spec("mlflow")
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    needed = (python, Path(sys.executable), Path(os.__file__), Path(str(mlflow and mlflow.origin)))
    if owner is None or not any(account.obstacle(owner, path) for path in (*needed, CODE)):
        return sys.executable, {"PYTHONPATH": str(CODE.parent)}
    copy, distributions = folder.python, _distributions()
    parts = [str(python), *(f"{name} {item.version}" for name, item in distributions.items())]
    parts += [path.read_text() for path in sorted(CODE.rglob("*.py"))]
    key = f"copied-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"
    if not (copy / key).exists():
        print(f"{owner.pw_name} cannot enter the folder of Python: copied to {copy}", flush=True)
        shutil.rmtree(copy, ignore_errors=True)
        _copy_python(python, distributions, copy)
        (copy / key).touch()
    environment = {"PYTHONPATH": str(copy / "packages"), "PYTHONNOUSERSITE": "1"}
    return str(copy / "bin" / python.name), {**environment, "LD_LIBRARY_PATH": str(copy / "lib")}


def _distributions() -> dict[str, metadata.Distribution]:
    """Return the installed packages that a server requires, by name."""
    distributions: dict[str, metadata.Distribution] = {}
    waiting = [Requirement(name) for name in PACKAGES]
    while waiting:
        name = canonicalize_name(waiting.pop().name)
        if name not in distributions:
            with suppress(metadata.PackageNotFoundError):
                distributions[name] = metadata.distribution(name)
                required = map(Requirement, distributions[name].requires or ())
                waiting += [item for item in required if not item.marker or item.marker.evaluate()]
    return dict(sorted(distributions.items()))


def _copy_python(
    python: Path, distributions: dict[str, metadata.Distribution], target: Path
) -> None:
    """Copy Python, the packages and the server's code, readable by every user."""
    prefix, library = Path(sys.base_prefix), Path(os.__file__).parent
    files = {python: target / "bin" / python.name}
    files |= {path: target / "lib" / path.name for path in prefix.glob("lib/*.so*")}
    for distribution in distributions.values():
        for file in distribution.files or ():
            if file.suffix not in (".pyc", ".pth") and not {"..", "tests"} & set(file.parts):
                source, copy = Path(str(distribution.locate_file(file))), target / "packages" / file
                files[source] = copy
                compiled = Path(cache_from_source(source))
                if file.suffix == ".py" and compiled.exists():  # its user could not write it
                    files[compiled] = copy.parent / compiled.parent.name / compiled.name
    for source, copy in files.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        _link_or_copy(source, copy)
    for source, copy in {
        library: target / library.relative_to(prefix),
        CODE: target / "packages" / CODE.name,
    }.items():
        shutil.copytree(source, copy, ignore=UNUSED, copy_function=_link_or_copy)
    for parent, _, _ in os.walk(target):
        os.chmod(parent, 0o755)


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    """Link a file that only root writes and everyone reads, which takes no space; copy others."""
    source, target = Path(source).resolve(), Path(target)
    status = source.stat()
    if target.exists():  # two packages list it
        return
    if status.st_uid == 0 and status.st_mode & 0o026 == 0o004:
        with suppress(OSError):  # another file system
            os.link(source, target)
            return
    shutil.copy(source, target)
    target.chmod(0o644 | status.st_mode & 0o111)
