"""Models and frameworks are found by name, cheaply, and the error lists what exists."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import models
from models import frameworks
from models.contract import ModelError
from tests.models.children import run_python

NAMES = {
    *("pytorch", "pytorch+compile", "pytorch+channels_last", "tensorflow", "tensorflow+eager", "tensorflow+xla"),
    *("keras-tensorflow", "keras-torch", "keras-jax"),
}


def test_models_are_folders() -> None:
    found = models.available()
    assert {"caption_decoder", "densenet201", "lenet", "resnet18", "vgg16"} <= set(found)
    assert set(found.values()) == {("keras", "pytorch")}  # every model is a pair
    assert models.spec("caption_decoder").Spec(10, 5).width == 256


@pytest.mark.parametrize("architecture", ["keras", "pytorch"])
def test_no_such_model(architecture: str) -> None:
    have = "have bert, caption_decoder, .*densenet201, .*, resnet18, .*"
    with pytest.raises(ModelError, match=rf"^no {architecture} model 'lenett'; did you mean lenet.*\? {have}"):
        models.load("lenett", architecture)
    with pytest.raises(ModelError, match=r"^no model '\.\./models'"):
        models.spec("../models")


def test_frameworks_have_variants() -> None:
    assert set(frameworks.available()) == NAMES


@pytest.mark.parametrize("wrong", ["tensorflow+xl", "pytorhc", "jax", ""])
def test_no_such_framework(wrong: str) -> None:
    with pytest.raises(ModelError, match=r"^no framework .*have .*tensorflow") as raised:
        frameworks.check(wrong)
    assert "\n" not in str(raised.value)


def test_near_names_are_suggested() -> None:
    with pytest.raises(ModelError, match="did you mean tensorflow\\+xla"):
        frameworks.check("tensorflow+xl")
    with pytest.raises(ModelError, match=r"^no model 'resnet81'; did you mean resnet18.*\? have bert, "):
        models.spec("resnet81")
    with pytest.raises(ModelError, match=r"^no model 'zzz'; have bert, "):
        models.spec("zzz")


def test_a_missing_package_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)  # what Python itself does to say: not importable
    monkeypatch.setattr(frameworks, "find_spec", lambda name: None if name == "jax" else object())
    assert frameworks.missing("keras-jax") == "keras-jax: jax is not installed: pip install -c constraints.txt -e '.[jax]'"
    assert frameworks.missing("keras-torch") is None
    with pytest.raises(ModelError, match="jax is not installed"):
        frameworks.open_framework("keras-jax", device="cpu", threads=1, precision="float32", seed=0)


@pytest.mark.parametrize(("setting", "value"), [("device", "gpu"), ("precision", "float16")])
def test_settings_that_do_not_exist(setting: str, value: str) -> None:
    settings: dict[str, Any] = {"device": "cpu", "threads": 1, "precision": "float32", "seed": 0, setting: value}
    with pytest.raises(ModelError, match=f"no {setting} '{value}'; have "):
        frameworks.open_framework("pytorch", **settings)


def test_names_cost_no_framework() -> None:
    script = """
import sys, models, models.weights, models.parity
from models import frameworks
[frameworks.missing(name) for name in frameworks.available()]
[models.spec(model) for model in models.available()]
heavy = {"torch", "tensorflow", "keras", "jax", "torchvision"} & sys.modules.keys()
assert not heavy, heavy
"""
    run_python("-c", script)


@pytest.mark.parametrize(("wrong", "said"), [({"vocabulary": 0}, "vocabulary must be at least 1"), ({"dropout": 1.0}, "dropout")])
def test_specs_refuse_nonsense(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        models.spec("caption_decoder").Spec(**{"vocabulary": 10, "length": 5, **wrong})


def test_initial_weights_are_drawn_once_and_follow_their_seed() -> None:
    module = models.spec("caption_decoder")
    spec = module.Spec(500, 20)
    first, again, other = (module.initial_weights(spec, np.random.default_rng(seed)) for seed in (1, 1, 2))
    for name, array in first.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, again[name])
        assert not np.array_equal(array, other[name])
    bound = 1 / np.sqrt(1920)
    assert 0.99 * bound < np.abs(first["image.weight"]).max() <= bound  # uniform over 491,520 draws reaches its bound
    assert first["embedding.weight"].std() == pytest.approx(1, abs=0.01)  # standard error 0.002


def test_what_is_hidden_from_a_framework_is_there_again_afterwards() -> None:
    import json  # imported already: stays as it is

    one = replace(frameworks.described("tensorflow"), imports_if_there=("json", "colorsys"))
    sys.modules.pop("colorsys", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frameworks, "described", lambda _: one)
        with frameworks.lean_import("tensorflow"):
            assert sys.modules["json"] is json
            with pytest.raises(ImportError):
                import_module("colorsys")
    assert import_module("colorsys").rgb_to_hsv(0, 0, 0) == (0, 0, 0)


# `lean` as a cell opens it, `plain` as a program of one's own would.
BUILT = """
import contextlib, sys, time
import numpy as np, psutil
from models import frameworks, spec
with frameworks.lean_import("keras-torch") if sys.argv[1] == "lean" else contextlib.nullcontext():
    framework = frameworks.open_framework("keras-torch", device="cpu", threads=1, precision="float32", seed=0)
began, before = time.perf_counter(), psutil.Process().memory_info().rss
framework.build("deepspeech2", spec("deepspeech2").probe(np.random.default_rng(0))[0])
took, grown = time.perf_counter() - began, (psutil.Process().memory_info().rss - before) / 2**20
print(any(module.startswith("tensorflow.") for module in sys.modules), f"{took:.2f} s, {grown:.0f} MiB")
"""


@pytest.mark.parametrize(("opened", "brings"), [("lean", False), pytest.param("plain", True, marks=pytest.mark.slow)])
def test_keras_on_pytorch_brings_no_tensorflow_into_a_cell(opened: str, *, brings: bool) -> None:
    """DeepSpeech2 has bidirectional layers: Keras copies them, and asks of what it copies whether it is TensorFlow's."""
    found, _, rest = run_python("-c", BUILT, opened).stdout.partition(" ")
    print(f"{opened}: {rest}")
    assert found == str(brings)
