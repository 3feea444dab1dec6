"""The contract suite: every framework inherits every check, and all compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from models import parity
from models.frameworks import available
from tests.models.conftest import ContractRun
from tests.models.contract_checks import ALL, CHECKS, SOME

QUICK = ("pytorch", "tensorflow", "keras-torch")
FRAMEWORKS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in available()]
OTHERS = [name for name in FRAMEWORKS if name != "pytorch"]
Run = Callable[[str], ContractRun]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_contract(framework: str, check: str, contract_run: Run) -> None:
    trouble = contract_run(framework).outcomes[check]
    assert not trouble, trouble


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("framework", OTHERS)
def test_equal_weights_give_equal_captions(framework: str, beams: int, contract_run: Run) -> None:
    expected = contract_run("pytorch").cross[f"decode/{beams}"]
    assert len(np.unique(expected, axis=0)) > 2  # captions that differ, or the comparison would be hollow
    np.testing.assert_array_equal(contract_run(framework).cross[f"decode/{beams}"], expected)


@pytest.mark.parametrize("model", SOME)
@pytest.mark.parametrize("framework", OTHERS)
def test_parity(framework: str, model: str, contract_run: Run) -> None:
    reference, other = contract_run("pytorch").parity(model), contract_run(framework).parity(model)
    _equal(model, framework, reference, other)


@pytest.mark.parametrize("model", sorted(set(ALL) - set(SOME)))
def test_parity_of_the_zoo(model: str, contract_run: Run) -> None:
    """On PyTorch's own kernels, where nothing is traced; test_zoo.py has all frameworks."""
    _equal(model, "keras-torch", contract_run("pytorch").parity(model), contract_run("keras-torch").parity(model))


def _equal(model: str, framework: str, reference: dict[str, Any], other: dict[str, Any]) -> None:
    rows = parity.judge(model, ("pytorch", reference), (framework, other))
    assert {row.quantity for row in rows} == {"count", "forward", "loss", "gradient", "step"}
    assert not [row for row in rows if not row.equal]
