"""Contract suite: each framework inherits each check, and all compute the same."""

from __future__ import annotations

import numpy as np
import pytest

import models
from models import parity
from models.frameworks import available
from models.frameworks.introspection import first_difference
from models.testing import FrameworkContract, contract_run
from models.testing.framework_checks import SOME

QUICK = ("pytorch", "tensorflow", "keras-torch")
# test_bert.py has BERT; the others are slow.
QUICK_ZOO = ("vgg16_cifar",)
# The small version of resnet152 is resnet50's.
SLOW_ZOO = tuple({*models.available()} - {*SOME, *QUICK_ZOO, "resnet152"})

# Layers that drop in the small versions, counted in the papers' figures; other models have none.
DROPPING = {
    "bert": 8,
    "efficientnet_b4": 7,
    "gnmt": 6,
    "inception_v3": 1,
    "mobilenet_v2": 1,
    "tacotron2": 10,
    "vgg16": 2,
    "vgg16_cifar": 4,
}


def slow_unless(quick: tuple[str, ...], names: tuple[str, ...]) -> list[object]:
    return [pytest.param(at, marks=() if at in quick else pytest.mark.slow) for at in names]


@pytest.fixture(params=slow_unless(QUICK, available()))
def every_framework(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class TestFramework(FrameworkContract):
    @pytest.fixture(autouse=True)
    def _set_framework(self, every_framework: str) -> None:
        self.framework = every_framework


@pytest.mark.parametrize("model", slow_unless(QUICK_ZOO, (*QUICK_ZOO, *sorted(SLOW_ZOO))))
def test_parity_of_the_zoo(model: str) -> None:
    """PyTorch's kernels, where nothing is traced; test_zoo.py has all frameworks."""
    zoo = QUICK_ZOO if model in QUICK_ZOO else SLOW_ZOO
    names = ("pytorch", "keras-torch")
    left, right = (contract_run(name, zoo).parity(model) for name in names)
    rows = parity.judge(model, (names[0], left), (names[1], right))
    assert [row.quantity for row in rows] == list(parity.QUANTITIES)
    assert not [row for row in rows if not row.equal]
    module = models.spec(model)
    shapes = module.shapes(module.probe(np.random.default_rng(0))[0])
    compared = {row.quantity: row.compared for row in rows}
    assert compared["statistics"] == sum(".running_" in name for name in shapes)
    assert {compared[name] for name in ("place", "mask", "dropout")} == {DROPPING.get(model, 0)}
    layers, mirrored = parity.layers_of(left), parity.layers_of(right)
    assert len(layers.keys() & mirrored.keys()) > 3
    # no layer of an equal network is blamed
    assert first_difference(layers, mirrored, 1e-10)[0] == "outputs"
