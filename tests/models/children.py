"""Child processes with a framework: tests start one and read its results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from models import parity, spec, weights
from models.contract import Array, Batch, Weights
from models.frameworks import environment_on, missing
from tests import warm

ROOT = Path(__file__).parents[2]
# Runs a script that sets `result`, with a cell's imports.
RUN = """
import json, sys
from models.frameworks import lean_import
framework, script = sys.argv[1:]
namespace = {"__name__": "script", "name": framework}
with lean_import(framework):
    exec(compile(script, "script", "exec"), namespace)
print(json.dumps(namespace["result"]))
"""


def run_python(
    *arguments: str, timeout: int = 500, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `python …` in the project's root; fail with its error output."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        input=stdin,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result


def run_in(framework: str, *arguments: str) -> str:
    """Return the output of `python …`, a fork of a process that has imported the framework."""
    command, variables = [sys.executable, *arguments], warm.variables_of(framework)
    result = warm.run(command, {**os.environ, **variables}, ROOT, 500, framework)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def result_of(framework: str, script: str) -> Any:
    """Return the `result` of a script, in which `name` is the framework."""
    return json.loads(run_in(framework, "-c", RUN, framework, script).splitlines()[-1])


@cache
def checked(framework: str, device: str = "cpu") -> dict[str, Any]:
    """Return what `tests.models.framework_checks` prints; skip the test without the framework."""
    if reason := missing(framework):
        pytest.skip(reason)
    words = ("-m", "tests.models.framework_checks", framework, device)
    if device == "cpu":
        output = run_in(framework, *words)
    else:  # Keras on PyTorch reads the device on import
        output = run_python(*words, **environment_on(device, os.environ)).stdout
    results: dict[str, Any] = json.loads(output.splitlines()[-1])
    return results


@contextmanager
def forked_processes() -> Iterator[None]:
    """Let the parity gate and the reader of state_dicts start forks with a framework's imports."""

    def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        framework = command[3] if command[2] == "models.parity" else "pytorch"
        variables = options.get("env", os.environ) | warm.variables_of(framework)
        return warm.run(command, variables, options["cwd"], 500, framework)

    forking = SimpleNamespace(run=run)
    with patch.object(parity, "subprocess", forking), patch.object(weights, "subprocess", forking):
        yield


@cache
def side(framework: str, model: str) -> dict[str, Array]:
    """Return a side of the parity gate; skip the test without the framework."""
    if reason := missing(framework):
        pytest.skip(reason)
    with forked_processes(), TemporaryDirectory() as folder:
        requests, side = [parity.ParityRequest(model)], parity.Side(framework)
        (arrays,) = parity.compute_in_process(requests, side, Path(folder, "computed"))
        return arrays


@cache
def probed(model: str) -> tuple[Any, Batch, Weights]:
    """Return the sizes, the batch and the weights with which the parity gate computes."""
    definition, rng = spec(model), np.random.default_rng(0)
    sizes, batch = definition.probe(rng)
    return sizes, batch, parity._perturbed(definition.initial_weights(sizes, rng), rng)
