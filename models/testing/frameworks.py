"""The contract of a framework: one process runs all checks in it, and each is a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import models
from models import parity
from models.frameworks import environment_on, missing
from models.testing.framework_checks import CHECKS, SOME

REFERENCE = "pytorch"


@dataclass(frozen=True)
class ContractRun:
    """outcomes: check -> traceback, empty when it passed. cross: what every framework must compute alike."""

    outcomes: dict[str, str]
    cross: dict[str, Any]

    def parity(self, model: str) -> dict[str, Any]:
        prefix = f"parity/{model}/"
        return {
            name.removeprefix(prefix): array
            for name, array in self.cross.items()
            if name.startswith(prefix)
        }


@cache
def contract_run(framework: str, names: tuple[str, ...] = (), device: str = "cpu") -> ContractRun:
    """All checks of a framework in a process of its own, once a session; or what it computes of the models that are named.

    Skips the test where the framework cannot run here.
    """
    if reason := missing(framework):
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "models.testing",
            framework,
            folder,
            *names,
            "--device",
            device,
        ]
        root = Path(models.__file__).parents[1]
        done = subprocess.run(
            command,
            cwd=root,
            env=environment_on(device, os.environ),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=500,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        outcomes = {} if names else json.loads(Path(folder, "outcomes.json").read_text())
        with np.load(Path(folder, "cross.npz")) as cross:
            return ContractRun(outcomes, dict(cross))


class FrameworkContract:
    """Inherit it, and name the framework. It computes the same as PyTorch and does all that an adapter must.

    device: `cpu`, or `cuda` for the same checks on a GPU.
    """

    framework: ClassVar[str]
    device: ClassVar[str] = "cpu"

    @pytest.mark.parametrize("check", CHECKS)
    def test_contract(self, check: str) -> None:
        trouble = contract_run(self.framework, device=self.device).outcomes[check]
        assert not trouble, trouble

    @pytest.mark.parametrize("model", SOME)
    def test_parity(self, model: str) -> None:
        reference, other = (
            contract_run(name, device=self.device) for name in (REFERENCE, self.framework)
        )
        rows = parity.judge(
            model, (REFERENCE, reference.parity(model)), (self.framework, other.parity(model))
        )
        assert not [row for row in rows if not row.equal]

    @pytest.mark.parametrize("beams", [1, 4])
    def test_equal_weights_give_equal_captions(self, beams: int) -> None:
        expected = contract_run(REFERENCE, device=self.device).cross[f"decode/{beams}"]
        assert (
            len(np.unique(expected, axis=0)) > 2
        )  # captions that differ, or the comparison would be hollow
        actual = contract_run(self.framework, device=self.device).cross[f"decode/{beams}"]
        np.testing.assert_array_equal(actual, expected)
