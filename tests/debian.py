"""Programs of the system that tests start, by the Debian package that brings them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

SEARCHED = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
POSTGRESQL = sorted(
    Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name)
)
PROGRAMS = {
    "chromium": ("chromium",),
    "g++": ("cc", "g++"),
    "hyperfine": ("hyperfine",),
    "nginx-light": ("nginx", "openssl"),
    "postgresql": ("initdb",),
    "slurm-wlm": (
        "slurmctld",
        "slurmd",
        "sbatch",
        "srun",
        "squeue",
        "sinfo",
        "scancel",
        "scontrol",
    ),
    "time": ("time",),
    "systemd": ("systemd-analyze", "systemd-sysusers"),
}
# Fixtures that start programs of a package.
FIXTURES = {
    "browser": "chromium",
    "group": "postgresql",
    "library": "g++",
    "postgres": "postgresql",
    "nginx": "nginx-light",
}


def path_of(program: str) -> str | None:
    """Return the path of a program, outside a user's PATH too."""
    if program == "initdb":
        return str(POSTGRESQL[-1] / program) if POSTGRESQL else None
    return shutil.which(program, path=SEARCHED)


def missing(package: str) -> list[str]:
    return [program for program in PROGRAMS[package] if path_of(program) is None]


def mark(items: list[pytest.Item]) -> None:
    """Mark tests by the packages that their fixtures need, and skip those that lack one."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in FIXTURES:
                item.add_marker(pytest.mark.debian(package=FIXTURES[fixture]))
        packages = {marker.kwargs["package"] for marker in item.iter_markers("debian")}
        if lacking := {package: missing(package) for package in packages if missing(package)}:
            reason = "; ".join(
                f"no {', '.join(programs)}: apt-get install {package}"
                for package, programs in sorted(lacking.items())
            )
            item.add_marker(pytest.mark.skip(reason=reason))
