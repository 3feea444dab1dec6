"""Tests of the contracts of frameworks and models, to inherit; they need pytest.

class TestMine(FrameworkContract):
    framework = "mine"

class TestTiny(ModelContract):
    model, parameters = "tiny", (1_234, 0)
"""

from __future__ import annotations

from models.testing.frameworks import ContractRun, FrameworkContract, contract_run
from models.testing.networks import (
    ModelContract,
    check_equality,
    check_initial_weights,
    check_sizes,
)

__all__ = [
    "ContractRun",
    "FrameworkContract",
    "ModelContract",
    "check_equality",
    "check_initial_weights",
    "check_sizes",
    "contract_run",
]
