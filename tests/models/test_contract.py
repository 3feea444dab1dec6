"""The contract suite: every framework inherits every check, and all compute the same."""

from __future__ import annotations

import pytest

import models
from models import parity
from models.frameworks import available
from models.testing import FrameworkContract, contract_run
from models.testing.framework_checks import SOME

QUICK = ("pytorch", "tensorflow", "keras-torch")
ZOO = tuple(name for name in models.available() if name not in SOME and name != "resnet152")  # its small version is resnet50's


@pytest.fixture(params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in available()])
def every_framework(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class TestFramework(FrameworkContract):
    @pytest.fixture(autouse=True)
    def _named(self, every_framework: str) -> None:
        self.framework = every_framework


@pytest.mark.parametrize("model", ZOO)
def test_parity_of_the_zoo(model: str) -> None:
    """On PyTorch's own kernels, where nothing is traced; test_zoo.py has all frameworks."""
    reference, other = (contract_run(name, ZOO).parity(model) for name in ("pytorch", "keras-torch"))
    rows = parity.judge(model, ("pytorch", reference), ("keras-torch", other))
    assert {row.quantity for row in rows} == {"count", "forward", "loss", "gradient", "step"}
    assert not [row for row in rows if not row.equal]
