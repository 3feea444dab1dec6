"""Run of all checks of a framework, in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from models.frameworks import environment_on, missing
from tests.models.framework_checks import SOME


@dataclass(frozen=True)
class ContractRun:
    """Tracebacks of all checks, empty for those that passed, and results to be compared."""

    outcomes: dict[str, str]
    cross: dict[str, Any]

    def parity(self, model: str) -> dict[str, Any]:
        prefix = f"parity/{model}/"
        names = (name for name in self.cross if name.startswith(prefix))
        return {name.removeprefix(prefix): self.cross[name] for name in names}


@cache
def contract_run(framework: str, names: tuple[str, ...] = SOME, device: str = "cpu") -> ContractRun:
    """Run all checks of a framework and compute some models, in a separate process, once.

    Skip the test if the framework cannot run here.
    """
    if reason := missing(framework):
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder:
        words = [framework, folder, *names, "--device", device]
        result = subprocess.run(
            [sys.executable, "-m", "tests.models.framework_checks", *words],
            cwd=Path(models.__file__).parents[1],
            env=environment_on(device, os.environ),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=500,
        )
        assert result.returncode == 0, result.stderr[-3000:]
        outcomes = json.loads(Path(folder, "outcomes.json").read_text())
        with np.load(Path(folder, "cross.npz")) as cross:
            return ContractRun(outcomes, dict(cross))
