"""The Python interpreter of each framework's processes: `pythons=tensorflow=/opt/tensorflow/bin/python`.

CUDA libraries of several frameworks overwrite each other in one environment, so that each may have an environment of its own.
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

from models import frameworks
from tracking import plain, provenance
from tracking.errors import WrongCall

PROBE = """
import json, sys
from models import frameworks
from tracking import provenance
packages = provenance.packages(frameworks.distributions())
print(json.dumps({"missing": frameworks.missing(sys.argv[1]), "packages": packages}))
"""
PROBE_SECONDS = 60


def parse(pythons: Sequence[str]) -> dict[str, str]:
    """Return the path of each framework that has an interpreter of its own. Raises WrongCall."""
    paths: dict[str, str] = {}
    for text in pythons:
        name, equals, path = (part.strip() for part in text.partition("="))
        if not (name and equals and path):
            raise WrongCall(
                f"pythons={plain.short(text)} is no framework with its interpreter; write tensorflow=/PATH/bin/python"
            )
        frameworks.check(name)
        whole = Path(path).expanduser()
        if not whole.is_absolute():
            raise WrongCall(
                f"pythons: {name}={plain.short(path)} is no absolute path; write {name}={Path.cwd() / path}"
            )
        if name in paths:
            raise WrongCall(f"pythons: {name} is named twice; keep one")
        paths[name] = str(whole)
    return paths


def separate(framework: str, pythons: Sequence[str]) -> str:
    """Return the path of a framework's own interpreter, "" for this one.

    That of `tensorflow` is also that of `tensorflow+xla`, unless this is named too.
    """
    paths = parse(pythons)
    return paths.get(framework) or paths.get(framework.partition("+")[0], "")


def executable(framework: str, pythons: Sequence[str]) -> str:
    """Return the interpreter that runs a framework's processes."""
    return separate(framework, pythons) or sys.executable


def missing(framework: str, pythons: Sequence[str]) -> str | None:
    """Return why a framework cannot run with its interpreter, or None. Raises WrongCall if the interpreter does not run."""
    python = separate(framework, pythons)
    if not python:
        return frameworks.missing(framework)
    reason: str | None = _probe(framework, python)["missing"]
    return f"{reason} (pythons: with {python} -m pip)" if reason else None


def packages(framework: str, python: str) -> Mapping[str, str]:
    """Return the versions that an interpreter has of what is recorded; of this one if `python` is empty. Raises WrongCall."""
    if not python:
        return provenance.packages(frameworks.distributions())
    installed: Mapping[str, str] = _probe(framework, python)["packages"]
    return installed


def all_packages(pythons: Sequence[str]) -> dict[str, Mapping[str, str]]:
    """Return the versions of every interpreter that is named, by its framework. Raises WrongCall."""
    return {name: packages(name, python) for name, python in parse(pythons).items()}


@cache
def _probe(framework: str, python: str) -> dict[str, Any]:
    """Ask another interpreter what it has, without importing a framework."""
    path = os.pathsep.join(filter(None, [str(provenance.ROOT), os.environ.get("PYTHONPATH")]))
    command = [python, "-P", "-c", PROBE, framework]
    given = f"pythons: {framework}={python}"
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS,
        )
    except OSError as error:
        raise WrongCall(
            f"{given} cannot be run: {error.strerror}; give the path of a Python interpreter"
        ) from None
    except subprocess.TimeoutExpired:
        raise WrongCall(
            f"{given} does not answer within {PROBE_SECONDS} s; give the path of a Python interpreter"
        ) from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
        _ = answer["missing"], answer["packages"]
    except (ValueError, TypeError, KeyError):
        said = plain.short(
            (done.stderr.strip().splitlines() or ["it prints nothing that was expected"])[-1]
        )
        raise WrongCall(
            f"{given} does not run this project's code: {said}; install what README.md names"
        ) from None
    return answer


__all__ = ["all_packages", "executable", "missing", "packages", "parse", "separate"]
