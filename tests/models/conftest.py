"""Each framework's contract run, once a session."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from models.frameworks import missing
from tests.models.children import run_python


@dataclass(frozen=True)
class ContractRun:
    """outcomes: check -> traceback, empty when it passed. cross: what every framework must compute alike."""

    outcomes: dict[str, str]
    cross: dict[str, Any]

    def parity(self, model: str) -> dict[str, Any]:
        prefix = f"parity/{model}/"
        return {name.removeprefix(prefix): array for name, array in self.cross.items() if name.startswith(prefix)}


@pytest.fixture(scope="session")
def contract_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ContractRun]:
    @cache
    def run(framework: str) -> ContractRun:
        if reason := missing(framework):
            pytest.skip(reason)
        folder = tmp_path_factory.mktemp("contract")
        run_python("-m", "tests.models.contract_checks", framework, str(folder))
        with np.load(folder / "cross.npz") as cross:
            return ContractRun(json.loads((folder / "outcomes.json").read_text()), dict(cross))

    return run
