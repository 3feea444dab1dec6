"""Models and frameworks are found by name, cheaply, and the error lists what exists."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import pytest

import models
from models import frameworks
from models.contract import ModelError
from tests.models.children import run_python

NAMES = {
    *(
        "pytorch",
        "pytorch+compile",
        "pytorch+channels_last",
        "tensorflow",
        "tensorflow+eager",
        "tensorflow+xla",
    ),
    *("keras-tensorflow", "keras-torch", "keras-jax"),
}


def test_models_and_frameworks_are_folders() -> None:
    found = models.available()
    assert {"caption_decoder", "densenet201", "lenet", "resnet18", "vgg16"} <= set(found)
    assert set(found.values()) == {("keras", "pytorch")}  # every model is a pair
    assert set(frameworks.available()) == NAMES


@pytest.mark.parametrize(
    ("find", "wrong", "named"),
    [
        (
            frameworks.check,
            "tensorflow+xl",
            r"no framework .*did you mean tensorflow\+xla.*have .*keras-jax",
        ),
        (frameworks.check, "jax", "no framework 'jax'; .*have .*tensorflow"),
        (frameworks.check, "", "no framework ''; have .*tensorflow"),
        (models.spec, "resnet81", r"no model 'resnet81'; did you mean resnet18.*\? have bert, "),
        (models.spec, "zzz", "no model 'zzz'; have bert, "),
        (models.spec, "../models", r"no model '\.\./models'"),
        (
            lambda name: models.load(name, "keras"),
            "lenett",
            r"no keras model 'lenett'; did you mean lenet.*\? have bert, ",
        ),
        (lambda name: opened(device=name), "gpu", "no device 'gpu'; have auto, cpu"),
        (lambda name: opened(precision=name), "float16", "no precision 'float16'; have float32"),
        (
            lambda name: opened(conv_algorithm=name),
            "best",
            "no conv_algorithm 'best'; have profiled",
        ),
    ],
)
def test_a_name_that_there_is_not_is_one_line_with_those_that_there_are(
    find: Callable[[str], object], wrong: str, named: str
) -> None:
    with pytest.raises(ModelError, match=f"^{named}") as raised:
        find(wrong)
    assert "\n" not in str(raised.value)


def opened(**settings: str) -> object:
    return frameworks.open_framework(
        "pytorch", **{"device": "cpu", "precision": "float32", **settings}, threads=1, seed=0
    )


def test_a_missing_package_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)  # what Python itself does to say: not importable
    monkeypatch.setattr(frameworks, "find_spec", lambda name: None if name == "jax" else object())
    assert (
        frameworks.missing("keras-jax")
        == "keras-jax: jax is not installed: pip install -c constraints.txt -e '.[jax]'"
    )
    assert frameworks.missing("keras-torch") is None
    with pytest.raises(ModelError, match="jax is not installed"):
        frameworks.open_framework("keras-jax", device="cpu", threads=1, precision="float32", seed=0)


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


@pytest.mark.parametrize(
    ("opened", "brings"), [("lean", False), pytest.param("plain", True, marks=pytest.mark.slow)]
)
def test_keras_on_pytorch_brings_no_tensorflow_into_a_cell(opened: str, *, brings: bool) -> None:
    """DeepSpeech2 has bidirectional layers: Keras copies them, and asks of what it copies whether it is TensorFlow's."""
    found, _, rest = run_python("-c", BUILT, opened).stdout.partition(" ")
    print(f"{opened}: {rest}")
    assert found == str(brings)
