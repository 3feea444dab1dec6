"""Virtual environments by their content: requirements, constraints, interpreter and platform."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from experiments.config import devices, variation
from experiments.config.settings import CampaignSettings
from experiments.config.variation import canonical, check_pins
from models import frameworks
from models.devices import ACCELERATORS, AUTO
from tracking import plain, provenance
from tracking.errors import ErrorCode, UsageError

S = TypeVar("S", bound=CampaignSettings)
FOLDER = "environments"  # in the project's cache
CONSTRAINTS = provenance.ROOT / "constraints.txt"
# Packages that cells import besides their framework's.
OF_CELLS = (
    "numpy",
    "nvidia-ml-py",
    "pillow",
    "psutil",
    "pyarrow",
    "sacrebleu",
    "safetensors",
)
# Lines of requirements that name a file of more lines.
FILES = re.compile(r"(?:-r|-c|--requirements?|--constraints?)[ =]?\s*(?P<path>\S.*)")
EDITABLE = re.compile(r"(-e|--editable)\b")
# Content of a local project that its installation does not depend on.
IGNORED = re.compile(r"\..*|__pycache__|build|.*\.egg-info")
LISTING = """
import json, platform
from importlib.metadata import distributions
versions = {}
for item in distributions():
    versions.setdefault(item.metadata["Name"] or "", item.version)
print(json.dumps({**versions, "python": platform.python_version()}))
"""
LISTING_SECONDS = 60
NOT_LISTED = frozenset({"", "pip"})  # uv brings no pip


@dataclass(frozen=True)
class VirtualEnvironment:
    """Content of a virtual environment.

    requirements: lines as in a requirements file, `-r` and `-c` included.
    preferred: pins that hold where the requirements allow them. python: version, or path of an
    interpreter; empty: this one's. folder: that paths in the lines are relative to.
    """

    requirements: tuple[str, ...]
    preferred: tuple[str, ...] = ()
    python: str = ""
    folder: Path = Path()

    def place(self, cache: Path) -> Path:
        """Return its folder in the cache, named by its content.

        Raises:
            UsageError: for a file of requirements that cannot be read.
        """
        parts = {
            "requirements": list(_content(self.requirements, self.folder)),
            "preferred": self.preferred,
            "python": self.python or [platform.python_version(), sys.base_prefix],
            "platform": [platform.system(), platform.machine(), *platform.libc_ver()],
        }
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
        return cache.resolve() / FOLDER / digest


def python_of(place: Path) -> str:
    """Return the path of the interpreter in an environment's folder."""
    return str(place / "bin" / "python")


def installed(python: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the versions of all packages that an interpreter sees, and its own as `python`.

    Args:
        python: Path of the interpreter.
        environment: Variables of its process; by default this one's.

    Raises:
        UsageError: if it does not run.
    """
    try:
        done = subprocess.run(
            [python, "-c", LISTING],
            cwd=os.sep,  # `-c` imports from the working folder first
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LISTING_SECONDS,
        )
        versions = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            ErrorCode.NOT_FOUND,
            f"{python} does not list its packages ({plain.short(str(error))}); "
            "name an interpreter of Python 3.8 or later",
        ) from None
    named = {canonical(name): version for name, version in versions.items()}
    return {name: named[name] for name in sorted(named.keys() - NOT_LISTED)}


def differing(packages: Iterable[Mapping[str, str]]) -> frozenset[str]:
    """Return the packages whose version is not the same in all environments."""
    environments = list(packages)
    names = {name for versions in environments for name in versions}
    return frozenset(
        name for name in names if len({versions.get(name) for versions in environments}) > 1
    )


def is_version(installed: str, version: str) -> bool:
    """Return whether an installed version is a pinned one, such as 2.14.0 for 2.14."""
    from packaging.specifiers import SpecifierSet

    return bool(installed) and SpecifierSet(f"=={version}").contains(installed, prereleases=True)


def interpreters_of(settings: CampaignSettings, version: str) -> tuple[str, ...]:
    """Return the setting `pythons` of the cells of one of `levels`."""
    places = {
        name: of_level(settings, name, version).place(Path(settings.cache))
        for name in settings.frameworks
    }
    return tuple(f"{name}={python_of(place)}" for name, place in places.items())


def interpreters_by_version(settings: CampaignSettings) -> dict[str, tuple[str, ...]]:
    """Return the setting `pythons` of each of `levels`; without levels the user's, of ""."""
    varied = variation.parse(settings) if settings.levels else None
    if not varied:
        return {"": settings.pythons}
    return {level.text: interpreters_of(settings, level.text) for level in varied.levels}


def with_baseline(settings: S) -> S:
    """Return the settings with the interpreters of the first level, which makes the features."""
    return replace(settings, pythons=next(iter(interpreters_by_version(settings).values())))


def frameworks_of_levels(settings: CampaignSettings) -> tuple[str, ...]:
    """Return the compared frameworks that consist of a package in `levels`; all if none does."""
    pinned = {name for level in settings.levels for name in check_pins(level)}
    having = [
        name
        for name in settings.frameworks
        if pinned.intersection(frameworks.described(name).distributions)
    ]
    return tuple(having) or settings.frameworks


def of_level(settings: CampaignSettings, framework: str, version: str) -> VirtualEnvironment:
    """Return the environment of a framework's cells at one of `levels`.

    It serves the GPU if there is one, whatever cells compute on: its place does not depend on what
    the checks of the frameworks see.
    """
    return of_framework(framework, devices.resolve(AUTO, settings), version)


@cache
def of_framework(framework: str, device: str, version: str = "") -> VirtualEnvironment:
    """Return the environment of a framework's cells on a device.

    The project's constraints are preferred: a package has another version only if the named
    versions need it, or if it is released together with one of them.

    Args:
        framework: Name of a variant.
        device: Kind of device that it computes on.
        version: One of `levels`; empty: the versions of the constraints.
    """
    pinned = check_pins(version).keys() if version else frozenset[str]()
    extras = ACCELERATORS[device].extras if device in ACCELERATORS else {}
    base = map(canonical, (*frameworks.described(framework).distributions, *OF_CELLS))
    others = dict.fromkeys(
        f"{name}[{extras[name]}]" if name in extras else name
        for name in base
        if name in extras or name not in pinned
    )
    free = set(pinned).union(*(group for group in provenance.RELEASED_TOGETHER if group & pinned))
    constraints = CONSTRAINTS.read_text(encoding="utf-8") if CONSTRAINTS.exists() else ""
    preferred = (line for line in constraints.split() if line.partition("==")[0] not in free)
    return VirtualEnvironment((*version.split(), *others), tuple(preferred))


def _content(lines: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield lines of requirements, and what they name of the local file system.

    Raises:
        UsageError: for a file that cannot be read, and for an editable installation.
    """
    for line in lines:
        yield line
        if EDITABLE.match(line):
            raise UsageError(
                ErrorCode.UNSUPPORTED,
                f"requirements: {plain.short(line)} has no version, since its files can change; "
                "name the path without -e",
            )
        if named := FILES.fullmatch(line):
            path = folder / named["path"].strip()
            try:
                text = path.read_text(encoding="utf-8").replace("\\\n", " ")
            except (OSError, ValueError) as error:
                raise UsageError(
                    ErrorCode.UNREADABLE,
                    f"requirements: {plain.short(line)}: {path} cannot be read "
                    f"({plain.short(str(error))}); paths are relative to {folder.resolve()}",
                ) from None
            stripped = (re.sub(r"(^|\s)#.*", "", row).strip() for row in text.splitlines())
            yield from _content([row for row in stripped if row], path.parent)
            continue
        path = folder / line.partition("[")[0].partition(";")[0].removeprefix("file://").strip()
        is_path = not line.startswith("-") and ("/" in line or line.endswith((".", ".whl", ".gz")))
        if is_path and path.exists():
            yield _digest(path)


def _digest(path: Path) -> str:
    """Return a digest of a file, or of the files of a project."""
    total = hashlib.sha256()
    for file in _files(path):
        total.update(json.dumps([str(file.relative_to(path)), file.stat().st_size]).encode())
        total.update(file.read_bytes())
    return total.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for child in sorted(path.iterdir()):
        if not IGNORED.fullmatch(child.name):
            yield from _files(child)
