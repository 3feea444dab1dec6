"""Processes of a framework: tests that need one start a child and read what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from models import frameworks

ROOT = Path(__file__).parents[2]


def run_python(
    *arguments: str, timeout: int = 500, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `python …` in the project's root; fail with its own words."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def run_in(framework: str, *arguments: str, timeout: int = 500) -> subprocess.CompletedProcess[str]:
    """Run `python …` with the variables that a framework of the CPU reads when it is imported."""
    packages = frameworks.described(framework).packages
    return run_python(
        *arguments,
        timeout=timeout,
        KERAS_BACKEND=packages[-1],
        KERAS_TORCH_DEVICE="cpu",
        TF_CPP_MIN_LOG_LEVEL="3",
    )


def answer(framework: str, script: str, *arguments: str) -> Any:
    """What a script prints of a framework, as JSON in its last line."""
    return json.loads(run_in(framework, "-c", script, *arguments).stdout.splitlines()[-1])
