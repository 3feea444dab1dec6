"""Contract suite: each framework inherits each check, and all compute the same."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

import models
from models import parity
from models.frameworks import trained
from models.frameworks.introspection import first_difference
from tests.models.children import checked, probed, side
from tests.models.framework_checks import CHECKS
from tests.models.plain import Bert

QUICK = ("pytorch", "tensorflow", "keras-torch")
# Together they have each kind of layer that adapters treat separately.
SOME = ("caption_decoder", "mobilenet_v2")
# Layers that drop in the small versions, counted in the papers' figures; other models have none.
DROPPING = {
    "bert": 8,
    "caption_decoder": 2,
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


@pytest.fixture(scope="module", params=slow_unless(QUICK, trained()))
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("check", CHECKS)
def test_contract(framework: str, check: str) -> None:
    trouble = checked(framework)["outcomes"][check]
    assert not trouble, trouble


@pytest.mark.parametrize("beams", ["1", "4"])
def test_equal_weights_give_equal_captions(framework: str, beams: str) -> None:
    expected = checked("pytorch")["captions"][beams]
    assert len(np.unique(expected, axis=0)) > 2  # equal captions would compare nothing
    assert checked(framework)["captions"][beams] == expected


def is_quick(name: str, model: str) -> bool:
    """Return whether a pair is compared by default: TensorFlow's eager mode traces no graph."""
    if (model in SOME and name in QUICK) or (
        name == "jax" and model in ("caption_decoder", "lenet")
    ):
        return True
    return name == "tensorflow+eager" and model != "resnet152"  # its small version is resnet50's


PAIRS = [
    pytest.param(name, model, marks=() if is_quick(name, model) else pytest.mark.slow)
    for name in trained()
    for model in models.available()
    if name != "pytorch"
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "model"), PAIRS)
def test_networks_are_equal(name: str, model: str) -> None:
    left, right = side("pytorch", model), side(name, model)
    rows = parity.judge(model, ("pytorch", left), (name, right))
    assert [row.quantity for row in rows] == list(parity.QUANTITIES)
    assert not [row for row in rows if not row.equal]
    module = models.spec(model)
    shapes = module.shapes(module.probe(np.random.default_rng(0))[0])
    compared = {row.quantity: row.compared for row in rows}
    assert compared["statistics"] == sum(".running_" in weight for weight in shapes)
    assert {compared[name] for name in ("place", "mask", "dropout")} == {DROPPING.get(model, 0)}
    layers, mirrored = parity.layers_of(left), parity.layers_of(right)
    assert len(layers.keys() & mirrored.keys()) > 3
    # no layer of an equal network is blamed
    assert first_difference(layers, mirrored, 1e-10)[0] == "outputs"


def test_small_resnet152_is_resnet50s() -> None:
    small, other = (probed(model) for model in ("resnet50", "resnet152"))
    assert vars(small[0]) == vars(other[0])
    assert small[2].keys() == other[2].keys()


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow+eager"])
def test_each_number_of_bert_is_that_of_the_formulas(framework: str) -> None:
    """Compare outputs, loss, slopes, and inputs and rate of each dropout."""
    spec, batch, values = probed("bert")
    results, plain = side(framework, "bert"), Bert(spec, values)
    np.testing.assert_allclose(results["forward/outputs"], plain.logits(batch), rtol=1e-12)
    for path, arrays in plain.received.items():
        inputs = np.concatenate([item.ravel() for item in arrays])
        np.testing.assert_allclose(results[f"place/{path}"], inputs, rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(results[f"mask/{path}"][:2], 1 / 0.9)
        dropped, drawn = results[f"dropout/{path}"]
        six_deviations = 6 * sqrt(0.1 * 0.9 / drawn)
        assert dropped / drawn == pytest.approx(0.1, abs=six_deviations)
    assert sum(name.startswith("dropout/") for name in results) == len(plain.received) == 8
    assert results["loss/mean"] == pytest.approx(plain.loss(batch), rel=1e-12)
    rng = np.random.default_rng(1)
    for name, array in values.items():
        direction = rng.standard_normal(array.shape)
        ends = [
            Bert(spec, values | {name: array + step * direction}).loss(batch)
            for step in (1e-5, -1e-5)
        ]
        slope = float((results[f"gradient/{name}"] * direction).sum())
        # Central differences: right to the square of the step, and to the loss's rounding over it.
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-8), name
