"""Child processes with a framework: tests start one and read its results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from models import frameworks

ROOT = Path(__file__).parents[2]
# Runs scripts one after the other, each of which sets `result`, with a cell's imports.
RUN_ALL = """
import json, sys
from models.frameworks import lean_import
framework, scripts = json.loads(sys.stdin.read())
results = {}
with lean_import(framework):
    for name, script in scripts.items():
        namespace = {"__name__": name}
        exec(compile(script, name, "exec"), namespace)
        results[name] = namespace["result"]
print(json.dumps(results))
"""


def run_python(
    *arguments: str, timeout: int = 500, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `python …` in the project's root; fail with its error output."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result


def run_in(
    framework: str, *arguments: str, timeout: int = 500, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `python …` with the variables that a framework reads on import, for the CPU."""
    return run_python(
        *arguments,
        timeout=timeout,
        stdin=stdin,
        KERAS_BACKEND=frameworks.described(framework).packages[-1],
        KERAS_TORCH_DEVICE="cpu",
        TF_CPP_MIN_LOG_LEVEL="3",
    )


def results_of(framework: str, scripts: dict[str, str]) -> dict[str, Any]:
    """Return the `result` of each script, run in one process."""
    done = run_in(framework, "-c", RUN_ALL, stdin=json.dumps([framework, scripts]))
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results
