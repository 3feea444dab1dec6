"""Models and frameworks are found by name, cheaply, and the error lists the names."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import models
from models import frameworks
from models.contract import ErrorCode, ModelError
from models.frameworks import pytorch
from tests.models.children import result_of, run_python


def open_pytorch(**settings: str) -> object:
    options = {"device": "cpu", "precision": "float32", **settings}
    return frameworks.open_framework("pytorch", **options, threads=1, seed=0)


def test_models_and_frameworks_are_folders() -> None:
    architectures = models.available()
    assert {"caption_decoder", "densenet201", "lenet", "resnet18", "vgg16"} <= set(architectures)
    assert set(architectures.values()) == {("keras", "pytorch")}  # each model is a pair
    names = "pytorch pytorch+compile pytorch+channels_last tensorflow tensorflow+eager"
    others = "tensorflow+xla keras-tensorflow keras-torch keras-jax jax"
    assert set(frameworks.trained()) == {*names.split(), *others.split()}
    runtimes = "litert onnxruntime openvino litert+int8 onnxruntime+int8 onnxruntime@tensorflow"
    assert set(frameworks.available()) == {
        *frameworks.trained(),
        *(*runtimes.split(), "pytorch+aot"),
    }


@pytest.mark.parametrize(
    ("find", "wrong", "names"),
    [
        (frameworks.check, "tensorflow+xl", r"tensorflow\+xla"),
        (frameworks.check, "", r"pytorch\b.*\bjax"),
        (models.spec, "resnet81", "resnet18"),
        (models.spec, "../models", "lenet"),
        (lambda at: models.load(at, "keras"), "lenett", "lenet"),
        (lambda at: open_pytorch(device=at), "gpu", "auto, cpu"),
        (lambda at: open_pytorch(precision=at), "half", "float32"),
        (lambda at: open_pytorch(conv_algorithm=at), "best", "profiled"),
    ],
)
def test_unknown_names_are_one_line_with_the_existing_ones(
    find: Callable[[str], object], wrong: str, names: str
) -> None:
    with pytest.raises(ModelError, match=f"{re.escape(repr(wrong))}.*{names}") as refused:
        find(wrong)
    assert refused.value.code is ErrorCode.UNKNOWN_NAME
    assert "\n" not in str(refused.value)


def test_missing_package_names_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "find_spec", lambda at: None if at == "jax" else object())
    install = "keras-jax: jax is not installed: pip install -c constraints.txt -e '.[jax]'"
    assert frameworks.missing("keras-jax") == install
    assert frameworks.missing("keras-torch") is None


def test_torch_compile_needs_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "needs a C++ compiler" in (frameworks.missing("pytorch+compile") or "")
    os.symlink("/bin/true", tmp_path / "gcc")  # enough on a GPU
    assert frameworks.missing("pytorch+compile") is None
    assert not pytorch.has_compiler(*pytorch.COMPILERS["cpu"][1:])


def test_names_import_no_framework() -> None:
    script = """
import sys, models, models.weights, models.parity
from models import frameworks
[frameworks.missing(name) for name in frameworks.available()]
[models.spec(model) for model in models.available()]
assert not {"torch", "tensorflow", "keras", "jax", "torchvision"} & sys.modules.keys()
"""
    run_python("-c", script)


def test_hidden_modules_are_importable_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    variant = replace(frameworks.described("tensorflow"), imports_if_there=("json", "colorsys"))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.setattr(frameworks, "described", lambda _: variant)
    with frameworks.lean_import("tensorflow"):
        assert sys.modules["json"] is json  # imported before
        with pytest.raises(ImportError):
            import_module("colorsys")
    assert import_module("colorsys").rgb_to_hsv(0, 0, 0) == (0, 0, 0)


# Keras copies bidirectional layers after a check for those of TensorFlow.
BUILT = """
import sys
import numpy as np
from models import frameworks, spec
opened = frameworks.open_framework(name, device="cpu", threads=1, precision="float32", seed=0)
opened.build("deepspeech2", spec("deepspeech2").probe(np.random.default_rng(0))[0])
result = any(module.startswith("tensorflow.") for module in sys.modules)
"""


def test_keras_on_pytorch_brings_no_tensorflow_into_a_cell() -> None:
    """DeepSpeech2 has bidirectional layers; Keras checks that their copies are TensorFlow's."""
    assert not result_of("keras-torch", BUILT)
