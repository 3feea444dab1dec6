"""Python interpreters of frameworks: `pythons=tensorflow=/opt/tensorflow/bin/python`.

CUDA libraries of several frameworks overwrite each other in one environment, so a framework may
have a separate one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from experiments.config.settings import read_texts
from experiments.config.variation import canonical
from models import frameworks
from tracking import plain, provenance
from tracking.errors import ErrorCode, UsageError

PROBE = """
import importlib.metadata, json, sys
from models import frameworks
from tracking import provenance
packages = provenance.packages(frameworks.distributions())
installed = provenance.versions_of(item.name for item in importlib.metadata.distributions())
answer = {"missing": frameworks.missing(sys.argv[1]), "packages": packages, "installed": installed}
print(json.dumps(answer))
"""
PROBE_SECONDS = 60
# File of the working folder with the interpreters that `evenhand setup` has made, as settings.
SETUP = Path(".evenhand/setup.json")


def parse(pythons: Sequence[str]) -> dict[str, str]:
    """Return the path of each framework with a separate interpreter.

    Raises:
        UsageError: for a text that is not a framework with an absolute path.
    """
    paths: dict[str, str] = {}
    for text in pythons:
        name, _, path = map(str.strip, text.partition("="))
        python = Path(os.path.expanduser(path))  # Path.expanduser raises for an unknown user
        if not (name and python.is_absolute()):
            raise UsageError(
                ErrorCode.INVALID_VALUE,
                f"pythons={plain.short(text)} is not a framework with the absolute path of its "
                f"interpreter; write tensorflow=/PATH/bin/python",
            )
        frameworks.check(name)
        if name in paths:
            raise UsageError(ErrorCode.DUPLICATE, f"pythons: {name} is named twice; keep one")
        paths[name] = str(python)
    return paths


def read_setup() -> dict[str, str]:
    """Return the setting `pythons` that `evenhand setup` has written in this folder, if it has.

    Raises:
        UsageError: For a file that it has not written.
    """
    if not SETUP.exists():
        return {}
    texts = read_texts(SETUP)
    if texts.keys() != {"pythons"}:
        raise UsageError(
            ErrorCode.UNREADABLE, f"{SETUP} is not from evenhand setup; remove it, and run that"
        )
    return texts


def separate(framework: str, pythons: Sequence[str]) -> str:
    """Return the path of a framework's separate interpreter, or "".

    That of `tensorflow` is also that of `tensorflow+xla`, unless this is named too.
    """
    paths = parse(pythons)
    return paths.get(framework) or paths.get(framework.partition("+")[0], "")


def executable(framework: str, pythons: Sequence[str]) -> str:
    """Return the interpreter that runs a framework's processes."""
    return separate(framework, pythons) or sys.executable


def missing(framework: str, pythons: Sequence[str]) -> str | None:
    """Return why a framework cannot run with its interpreter, or None.

    Raises:
        UsageError: if the interpreter does not run.
    """
    python = separate(framework, pythons)
    if not python:
        return frameworks.missing(framework)
    reason: str | None = _probe(framework, python)["missing"]
    return f"{reason} (pythons: with {python} -m pip)" if reason else None


def packages(framework: str, python: str) -> Mapping[str, str]:
    """Return the versions of recorded packages in an interpreter; in this one if it is empty."""
    if not python:
        return provenance.packages(frameworks.distributions())
    installed: Mapping[str, str] = _probe(framework, python)["packages"]
    return installed


def installed(framework: str, python: str) -> Mapping[str, str]:
    """Return the versions of all packages that the cells of another interpreter see."""
    versions: Mapping[str, str] = _probe(framework, python)["installed"]
    return {canonical(name): version for name, version in versions.items()}


@cache
def _probe(framework: str, python: str) -> dict[str, Any]:
    """Return the packages of another interpreter, which imports no framework for it."""
    path = os.pathsep.join(filter(None, [str(provenance.ROOT), os.environ.get("PYTHONPATH")]))
    label = f"pythons: {framework}={python}"
    reason = "its output is not JSON"
    try:
        done = subprocess.run(
            [python, "-P", "-c", PROBE, framework],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS,
        )
        reason = (done.stderr.strip().splitlines() or [reason])[-1]
        answer: dict[str, Any] = json.loads(done.stdout)
        _ = answer["missing"], answer["packages"], answer["installed"]
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            ErrorCode.NOT_FOUND,
            f"{label} cannot be run: {error}; give the path of a Python interpreter, "
            "or make one with evenhand setup",
        ) from None
    except (ValueError, TypeError, KeyError):
        raise UsageError(
            ErrorCode.NOT_INSTALLED,
            f"{label} does not run this project's code: {plain.short(reason)}; "
            f"install the packages that README.md names",
        ) from None
    return answer
