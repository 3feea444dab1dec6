"""Contract of a framework: one process runs all checks in it, and each is a test."""

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
from tests.models.framework_checks import CHECKS, SOME

REFERENCE = "pytorch"


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


class FrameworkContract:
    """Tests to inherit: the framework computes the same as PyTorch and keeps the contract.

    models: those that are computed, `SOME` at least. device: `cpu`, or `cuda` for the same checks
    on a GPU.
    """

    framework: ClassVar[str]
    models: ClassVar[tuple[str, ...]] = SOME
    device: ClassVar[str] = "cpu"

    def _run(self, framework: str) -> ContractRun:
        return contract_run(framework, self.models, self.device)

    @pytest.mark.parametrize("check", CHECKS)
    def test_contract(self, check: str) -> None:
        trouble = self._run(self.framework).outcomes[check]
        assert not trouble, trouble

    @pytest.mark.parametrize("model", SOME)
    def test_parity(self, model: str) -> None:
        names = REFERENCE, self.framework
        left, right = (self._run(name).parity(model) for name in names)
        rows = parity.judge(model, (names[0], left), (names[1], right))
        assert not [row for row in rows if not row.equal]

    @pytest.mark.parametrize("beams", [1, 4])
    def test_equal_weights_give_equal_captions(self, beams: int) -> None:
        expected = self._run(REFERENCE).cross[f"decode/{beams}"]
        assert len(np.unique(expected, axis=0)) > 2  # equal captions would compare nothing
        np.testing.assert_array_equal(self._run(self.framework).cross[f"decode/{beams}"], expected)
