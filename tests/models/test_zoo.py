"""Vision models: published sizes, torchvision's checkpoints, frameworks in the parity gate."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest

import models
from models import parity, weights
from models.contract import ErrorCode
from models.frameworks import available, missing
from tests.models.children import results_of
from tests.models.network_checks import check_equality, check_initial_weights, check_sizes

# Trainable and other parameters by torchvision's tables; of vgg16_cifar and lenet by hand.
PUBLISHED = {
    "resnet18": (11_689_512, 9_600),
    "resnet50": (25_557_032, 53_120),
    "resnet152": (60_192_808, 151_424),
    "vgg16": (138_357_544, 0),
    "vgg16_cifar": (14_987_722, 9_472),
    "mobilenet_v2": (3_504_872, 34_112),
    "efficientnet_b4": (19_341_616, 125_200),
    "inception_v3": (23_834_568, 34_432),
    "densenet201": (20_013_928, 229_056),
    "lenet": (61_706, 0),
}
OF_TORCHVISION = sorted(PUBLISHED.keys() - {"vgg16_cifar", "lenet"})
LARGE = {"vgg16", "resnet152"}  # half a gigabyte, and minutes of tracing
EVERYWHERE = [name for name in available() if name != "pytorch"]

SIZES = """
import models
from models.frameworks import open_framework
framework = open_framework(FRAMEWORK, device="cpu", threads=1, precision="float32", seed=0)
result = {}
for name in NAMES:
    network = framework.build(name, models.spec(name).Spec())
    shapes = {key: array.shape for key, array in framework.weights(network).items()}
    result[name] = [framework.parameter_counts(network), shapes]
"""
CHECKPOINTS = """
import torch
from torchvision.models import get_model
result = {}
for name in NAMES:
    options = {"init_weights": False} if name == "inception_v3" else {}
    with torch.device("meta"):
        state = get_model(name, weights=None, **options).state_dict()
    result[name] = {key: tensor.shape for key, tensor in state.items()}
"""
POOLS = """
import numpy as np
import models
from models.frameworks import open_framework
framework = open_framework(FRAMEWORK, device="cpu", threads=1, precision="float64", seed=0)
module = models.spec("vgg16")
spec, _ = module.probe(np.random.default_rng(0))
result = {}
for side in (8, 40, 56, 72):  # 1, 5, 7 and 9 pixels before the pooling to 7
    network = framework.build("vgg16", spec)
    framework.load_weights(network, module.initial_weights(spec, np.random.default_rng(1)))
    images = np.random.default_rng(side).standard_normal((2, side, side, 3)).astype(np.float32)
    result[side] = framework.infer(network, (images,)).tolist()
"""


@cache
def results(framework: str) -> dict[str, Any]:
    sizes = sorted(PUBLISHED.keys() - (LARGE if framework != "tensorflow" else set()))
    scripts = {
        "sizes": (SIZES, sizes),
        "checkpoints": (CHECKPOINTS, OF_TORCHVISION),
        "pools": (POOLS, []),
    }
    names = {"pytorch": scripts, "tensorflow": ["sizes", "pools"]}.get(framework, ["pools"])
    return results_of(
        framework,
        {
            name: f"FRAMEWORK, NAMES = {framework!r}, {scripts[name][1]!r}\n{scripts[name][0]}"
            for name in names
        },
    )


@pytest.mark.parametrize("model", sorted(PUBLISHED))
def test_models_keep_their_contract(model: str) -> None:
    """Equality, the third part of it, is judged for all models at once in test_contract.py."""
    check_sizes(model, PUBLISHED[model])
    check_initial_weights(model)


@pytest.mark.parametrize(
    "framework", ["pytorch", pytest.param("tensorflow", marks=pytest.mark.slow)]
)
def test_networks_have_the_published_sizes(framework: str) -> None:
    for model, (counts, shapes) in results(framework)["sizes"].items():
        module = models.spec(model)
        assert tuple(counts) == PUBLISHED[model], model
        expected = {name: list(shape) for name, shape in module.shapes(module.Spec()).items()}
        assert shapes == expected, model


@pytest.mark.parametrize("model", OF_TORCHVISION)
def test_checkpoints_of_torchvision_have_our_names_and_shapes(model: str) -> None:
    shapes = results("pytorch")["checkpoints"][model]
    published = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
    module = models.spec(model)
    renamed = {name: array.shape for name, array in weights.renamed(model, published).items()}
    assert renamed == module.shapes(module.Spec())


def test_initial_weights_are_of_order_one_however_deep() -> None:
    module = models.spec("resnet50")
    drawn = module.initial_weights(module.Spec(), np.random.default_rng(0))
    for name, array in drawn.items():
        if array.ndim == 4:  # He: 2 / fan in; 64 · 27 values and more spread it by 5 %
            assert array.var() * prod(array.shape[1:]) == pytest.approx(2, rel=0.15), name


@pytest.mark.parametrize(
    "framework", [pytest.param("tensorflow", marks=pytest.mark.slow), "keras-torch"]
)
def test_pooling_before_vgg16s_classifier_takes_any_side(framework: str) -> None:
    others = results(framework)["pools"]
    for side, logits in results("pytorch")["pools"].items():
        np.testing.assert_allclose(others[side], logits, rtol=1e-10, atol=1e-12, err_msg=side)


def test_nonsense_sizes_are_refused() -> None:
    with pytest.raises(models.ModelError, match="classes") as refused:
        models.spec("resnet18").Spec(classes=0)
    assert refused.value.code is ErrorCode.INVALID_VALUE


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("framework", EVERYWHERE)
@pytest.mark.parametrize("model", models.available())
def test_frameworks_pass_the_gate(model: str, framework: str) -> None:
    if reason := missing(framework):
        pytest.skip(reason)
    check_equality(model, ["pytorch", framework])


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("model", [*sorted(PUBLISHED), "bert", "deepspeech2", "gnmt", "tacotron2"])
def test_whole_networks_pass_the_gate(model: str) -> None:
    rows = parity.gate(
        parity.ParityRequest(model, full=True), ["pytorch", "tensorflow"], at_once=1, threads=2
    )
    assert not [row for row in rows if not row.equal]
