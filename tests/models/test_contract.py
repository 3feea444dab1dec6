"""Contract suite: each framework inherits each check, and all compute the same."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

import models
from models import parity
from models.bert import spec as bert
from models.contract import Array, Batch
from models.frameworks import available
from models.frameworks.introspection import first_difference
from tests.models.framework_checks import CHECKS, SOME
from tests.models.framework_contract import ContractRun, contract_run
from tests.models.plain import Bert

QUICK = ("pytorch", "tensorflow", "keras-torch")
QUICK_ZOO = ("bert", "vgg16_cifar")
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


@pytest.fixture(scope="module", params=slow_unless(QUICK, available()))
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(name: str) -> ContractRun:
    return contract_run(name, (*SOME, *QUICK_ZOO))


@pytest.mark.parametrize("check", CHECKS)
def test_contract(framework: str, check: str) -> None:
    trouble = run(framework).outcomes[check]
    assert not trouble, trouble


@pytest.mark.parametrize("model", SOME)
def test_parity(framework: str, model: str) -> None:
    names = "pytorch", framework
    left, right = (run(name).parity(model) for name in names)
    rows = parity.judge(model, (names[0], left), (names[1], right))
    assert not [row for row in rows if not row.equal]


@pytest.mark.parametrize("beams", [1, 4])
def test_equal_weights_give_equal_captions(framework: str, beams: int) -> None:
    expected = run("pytorch").cross[f"decode/{beams}"]
    assert len(np.unique(expected, axis=0)) > 2  # equal captions would compare nothing
    np.testing.assert_array_equal(run(framework).cross[f"decode/{beams}"], expected)


@pytest.mark.parametrize("model", slow_unless(QUICK_ZOO, (*QUICK_ZOO, *sorted(SLOW_ZOO))))
def test_parity_of_the_zoo(model: str) -> None:
    """PyTorch's kernels, where nothing is traced; test_zoo.py has all frameworks."""
    zoo = (*SOME, *QUICK_ZOO) if model in QUICK_ZOO else SLOW_ZOO
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


@pytest.fixture(scope="module")
def probed() -> tuple[bert.Spec, Batch, dict[str, Array]]:
    """Return the inputs of the parity gate."""
    rng = np.random.default_rng(0)
    spec, batch = bert.probe(rng)
    return spec, batch, parity._perturbed(bert.initial_weights(spec, rng), rng)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_each_number_of_bert_is_that_of_the_formulas(
    framework: str, probed: tuple[bert.Spec, Batch, dict[str, Array]]
) -> None:
    """Compare outputs, loss, slopes, and inputs and rate of each dropout."""
    spec, batch, values = probed
    results, plain = (
        run(framework).parity("bert"),
        Bert(spec, values),
    )
    np.testing.assert_allclose(results["forward/outputs"], plain.logits(batch), rtol=1e-12)
    for path, arrays in plain.received.items():
        np.testing.assert_allclose(
            results[f"place/{path}"],
            np.concatenate([item.ravel() for item in arrays]),
            rtol=1e-11,
            atol=1e-14,
        )
        np.testing.assert_allclose(results[f"mask/{path}"][:2], 1 / 0.9)
        dropped, drawn = results[f"dropout/{path}"]
        assert dropped / drawn == pytest.approx(
            0.1, abs=6 * sqrt(0.1 * 0.9 / drawn)
        )  # six deviations
    assert (
        len([name for name in results if name.startswith("dropout/")]) == len(plain.received) == 8
    )
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
