"""Networks: published sizes, initial weights, torchvision's checkpoints, whole ones in the gate."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest

import models
from models import parity, weights
from models.bert import spec as bert
from models.caption_decoder import spec as decoder
from models.contract import ErrorCode
from tests.models.children import forked_processes, result_of

W, V = 1_024, 32_000  # of GNMT
RECURRENT, LATER = (2 * 4 * 800 * (inputs + 800 + 1) for inputs in (32 * 41, 800))  # Deep Speech 2
ENCODER = {  # of BERT
    "embeddings": (30_522 + 512 + 2) * 768 + 2 * 768,
    "attention": 12 * (4 * (768 * 768 + 768) + 2 * 768),
    "feed-forward": 12 * (768 * 3_072 + 3_072 + 3_072 * 768 + 768 + 2 * 768),
    "pooler": 768 * 768 + 768,
}
BY_HAND = {
    "bert": {**ENCODER, "classifier": 2 * 768 + 2},
    "deepspeech2": {
        "convolutions": 32 * 11 * 41 + 32 * 32 * 11 * 21 + 2 * 2 * 32,
        "lstms": RECURRENT + 4 * LATER,
        "norms": 5 * 2 * 800,
        "symbols": 800 * 29 + 29,
    },
    "gnmt": {
        "words": V * W + W * V + V,
        "encoder": 2 * 4 * W * (2 * W + 1) + 4 * W * (3 * W + 1) + 6 * 4 * W * (2 * W + 1),
        "decoder": 4 * W * (2 * W + 1) + 7 * 4 * W * (3 * W + 1),
        "attention": 2 * W * W + W,
    },
    "tacotron2": {
        "encoder": 148 * 512 + 3 * (512 * 512 * 5 + 2 * 512) + 2 * 4 * 256 * (512 + 256 + 1),
        "decoder": 80 * 256
        + 256 * 256
        + 4 * 1_024 * (256 + 512 + 1_024 + 1)
        + 4 * 1_024 * (2 * 1_024 + 1),
        "attention": 128 * (1_024 + 512 + 32 + 1) + 32 * 31,
        "outputs": (1_024 + 512 + 1) * 81 + 5 * (2 * 80 * 512 + 3 * 512 * 512) + 2 * (4 * 512 + 80),
    },
}
STATISTICS = {"deepspeech2": 2 * (2 * 32 + 5 * 800), "tacotron2": 2 * (3 * 512 + 4 * 512 + 80)}
# Trainable and other parameters; those of images by torchvision's tables, or by hand.
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
    **{name: (sum(of.values()), STATISTICS.get(name, 0)) for name, of in BY_HAND.items()},
}
OF_IMAGES = sorted(PUBLISHED.keys() - BY_HAND.keys())
OF_TORCHVISION = sorted({*OF_IMAGES} - {"vgg16_cifar", "lenet"})

# Networks without memory for their weights.
WHOLE = """
import torch
import models
from models.frameworks import open_framework
from models.frameworks.pytorch.introspection import state
from torchvision.models import get_model
framework = open_framework(name, device="cpu", threads=1, precision="float32", seed=0)
result = {}
for model in MODELS:
    options = {"init_weights": False} if model == "inception_v3" else {}
    with torch.device("meta"):
        network = models.load(model, "pytorch").build(models.spec(model).Spec())
        theirs = get_model(model, weights=None, **options) if model in PUBLISHED else network
    states = (state(network), theirs.state_dict())
    shapes = [{key: tensor.shape for key, tensor in at.items()} for at in states]
    result[model] = [framework.parameter_counts(network), *shapes]
"""
POOLS = """
import numpy as np
import models
from models.frameworks import open_framework
framework = open_framework(name, device="cpu", threads=1, precision="float64", seed=0)
module = models.spec("vgg16")
spec, _ = module.probe(np.random.default_rng(0))
result = {}
for side in (8, 40, 56, 72):  # 1, 5, 7 and 9 pixels before the pooling to 7
    network = framework.build("vgg16", spec)
    framework.load_weights(network, module.initial_weights(spec, np.random.default_rng(1)))
    images = np.random.default_rng(side).standard_normal((2, side, side, 3)).astype(np.float32)
    result[side] = framework.infer(network, (images,)).tolist()
"""


def check_sizes(model: str, expected: tuple[int, int]) -> None:
    """Check (trainable, other) parameters, and that the small version is no larger."""
    module = models.spec(model)
    small, _ = module.probe(np.random.default_rng(0))
    whole, _ = module.probe(np.random.default_rng(0), full=True)
    assert module.parameters(whole) == expected
    assert sum(prod(shape) for shape in module.shapes(whole).values()) == sum(expected)
    assert sum(module.parameters(small)) <= sum(expected)


def check_initial_weights(model: str) -> None:
    """Check shapes, types and values, which depend on the seed."""
    module = models.spec(model)
    small, _ = module.probe(np.random.default_rng(0))
    first, again, other = (
        module.initial_weights(small, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert {name: array.shape for name, array in first.items()} == module.shapes(small)
    for name, array in first.items():
        assert array.dtype == np.float32, name
        assert np.isfinite(array).all(), name
        np.testing.assert_array_equal(array, again[name], err_msg=name)
    assert any(not np.array_equal(array, other[name]) for name, array in first.items())


@pytest.mark.parametrize("model", models.available())
def test_models_have_published_sizes_and_initial_weights(model: str) -> None:
    if model in PUBLISHED:  # the decoder's depend on its captions
        check_sizes(model, PUBLISHED[model])
    check_initial_weights(model)


def test_encoder_of_bert_has_its_published_size() -> None:
    encoder = sum(ENCODER.values())
    assert encoder == 109_482_240
    assert bert.shapes(bert.Spec(classes=None)).parameters == (encoder, 0)


def test_whole_networks_have_the_names_and_shapes_of_torchvision() -> None:
    head = f"MODELS, PUBLISHED = {OF_IMAGES}, {OF_TORCHVISION}"
    for model, (counts, shapes, theirs) in result_of("pytorch", f"{head}\n{WHOLE}").items():
        module = models.spec(model)
        expected = {name: list(shape) for name, shape in module.shapes(module.Spec()).items()}
        assert tuple(counts) == PUBLISHED[model], model
        assert shapes == expected, model
        checkpoint = {name: np.broadcast_to(np.float32(0), shape) for name, shape in theirs.items()}
        renamed = weights.renamed(model, checkpoint)
        assert {name: [*array.shape] for name, array in renamed.items()} == expected, model


def test_initial_weights_follow_their_distributions() -> None:
    """Check a deep network of images, the decoder of captions, and BERT."""
    module = models.spec("resnet50")
    for name, array in module.initial_weights(module.Spec(), np.random.default_rng(0)).items():
        if array.ndim == 4:  # He: 2 / fan in; 64 · 27 values and more spread it by 5 %
            assert array.var() * prod(array.shape[1:]) == pytest.approx(2, rel=0.15), name
    drawn = decoder.initial_weights(decoder.Spec(500, 20), np.random.default_rng(1))
    bound = 1 / np.sqrt(1920)
    # uniform: one of 491,520 draws reaches the bound nearly
    assert 0.99 * bound < np.abs(drawn["image.weight"]).max() <= bound
    assert drawn["embedding.weight"].std() == pytest.approx(1, abs=0.01)  # standard error 0.002
    tiny = replace(bert.SIZES["tiny"], vocabulary=5_000)
    drawn = bert.initial_weights(tiny, np.random.default_rng(0))
    words = drawn["embeddings.word_embeddings.weight"]
    assert np.abs(words).max() <= 0.04
    # a normal without what is beyond two deviations
    assert words.std() == pytest.approx(0.02 * 0.8796, rel=0.01)
    assert (drawn["encoder.layer.1.output.LayerNorm.weight"] == 1).all()
    assert (drawn["encoder.layer.1.output.LayerNorm.bias"] == 0).all()


@cache
def pools(framework: str) -> dict[str, Any]:
    return dict(result_of(framework, POOLS))


@pytest.mark.parametrize("framework", ["tensorflow+eager", "keras-torch"])
def test_pooling_before_vgg16s_classifier_takes_any_side(framework: str) -> None:
    for side, logits in pools("pytorch").items():
        others = pools(framework)[side]
        np.testing.assert_allclose(others, logits, rtol=1e-10, atol=1e-12, err_msg=side)


@pytest.mark.parametrize(
    ("model", "wrong"),
    [
        ("bert", {"layers": 0}),
        ("bert", {"heads": 7}),
        ("bert", {"classes": 0}),
        ("bert", {"dropout": 1.0}),
        ("caption_decoder", {"vocabulary": 0}),
        ("caption_decoder", {"dropout": 1.0}),
        ("deepspeech2", {"width": 0}),
        ("deepspeech2", {"ctc": "warp"}),
        ("gnmt", {"layers": 1}),
        ("gnmt", {"dropout": 1.0}),
        ("gnmt", {"lstm": "cudnn"}),
        ("resnet18", {"classes": 0}),
        ("tacotron2", {"bins": 0}),
        ("tacotron2", {"reach": 4}),
    ],
)
def test_nonsense_sizes_are_refused(model: str, wrong: dict[str, Any]) -> None:
    module = models.spec(model)
    spec = module.sized("tiny") if module.SIZES else module.Spec()
    with pytest.raises(models.ModelError, match=next(iter(wrong))) as refused:
        replace(spec, **wrong)
    assert refused.value.code in (ErrorCode.INVALID_VALUE, ErrorCode.UNKNOWN_NAME)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("model", PUBLISHED)
def test_whole_networks_pass_the_gate(model: str) -> None:
    request, sides = parity.ParityRequest(model, full=True), ["pytorch", "tensorflow"]
    with forked_processes():
        rows = parity.gate([request], sides, at_once=1, threads=2)
    assert not [row for row in rows if not row.equal]
