"""One framework a process: tests that need one start a child and read what it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import forks

ROOT = Path(__file__).parents[2]


def run_python(*arguments: str, timeout: int = 500) -> subprocess.CompletedProcess[str]:
    """`python …` from the project's root; fails with the child's own words."""
    return _checked(subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout))


def run_in(framework: str, *arguments: str, timeout: int = 500) -> subprocess.CompletedProcess[str]:
    """The same in a process in which nothing has happened but the import of the framework's packages."""
    return _checked(forks.run(forks.server(), framework, arguments, ROOT, timeout))


def answer(framework: str, script: str, *arguments: str) -> Any:
    """What a script prints of a framework, as JSON in its last line."""
    return json.loads(run_in(framework, "-c", script, *arguments).stdout.splitlines()[-1])


def _checked(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stderr[-3000:]
    return done
