"""The contract suite: every framework inherits every check, and all compute the same."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

import models
from models import parity
from models.frameworks import available
from models.layer_values import first_difference
from models.testing import FrameworkContract, contract_run
from models.testing.framework_checks import SOME

QUICK = ("pytorch", "tensorflow", "keras-torch")
# One or two of each family; the others too with -m slow, and before every campaign that measures them.
QUICK_ZOO = ("bert", "deepspeech2", "gnmt", "mobilenet_v2", "resnet50", "tacotron2", "vgg16_cifar")
# The small version of resnet152 is resnet50's.
SLOW_ZOO = tuple(
    name for name in models.available() if name not in (*SOME, *QUICK_ZOO, "resnet152")
)

# Layers that drop in the small versions, counted in the papers' figures; densenet201, resnet18, resnet50 and lenet have none.
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


# Whose weights Keras' side takes without calling the layer: nothing can be compared.
UNCALLED = {"tacotron2": {"score", "where"}}


@pytest.fixture(
    params=[
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in available()
    ]
)
def every_framework(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class TestFramework(FrameworkContract):
    @pytest.fixture(autouse=True)
    def _named(self, every_framework: str) -> None:
        self.framework = every_framework


@pytest.mark.parametrize(
    "model", [*QUICK_ZOO, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_ZOO)]
)
def test_parity_of_the_zoo(model: str) -> None:
    """On PyTorch's own kernels, where nothing is traced; test_zoo.py has all frameworks."""
    zoo = QUICK_ZOO if model in QUICK_ZOO else SLOW_ZOO
    reference, other = (
        contract_run(name, zoo).parity(model) for name in ("pytorch", "keras-torch")
    )
    rows = parity.judge(model, ("pytorch", reference), ("keras-torch", other))
    assert [row.quantity for row in rows] == list(parity.QUANTITIES)
    assert not [row for row in rows if not row.equal]
    compared = {row.quantity: row.compared for row in rows}
    assert compared["statistics"] == sum(".running_" in name for name in _shapes(model))
    assert {compared[name] for name in ("place", "mask", "dropout")} == {DROPPING.get(model, 0)}
    layers, mirrored = parity._layers(reference), parity._layers(other)
    # no layer of an equal network is blamed
    assert first_difference(layers, mirrored, 1e-10)[0] == "outputs"
    named = {name.rpartition(".")[0] for name in _shapes(model)} & layers.keys()
    assert named - mirrored.keys() == UNCALLED.get(model, set())
    assert all(layers[path].shape == mirrored[path].shape for path in named & mirrored.keys())


def _shapes(model: str) -> Iterable[str]:
    module = models.spec(model)
    return module.shapes(module.probe(np.random.default_rng(0))[0])
