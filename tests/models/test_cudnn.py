"""Recurrent layers that may use cuDNN's operator: XLA cannot compile it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from experiments.cell import measure
from experiments.comparison.analyses import runs
from experiments.comparison.runs.warning import WarningCode
from models.frameworks import missing
from tests.models.children import result_of
from tracking.records import JIT_COMPILE, JIT_PLANNED

# Keras believes that there is a GPU; cuDNN's operator is a Python function, unknown to XLA.
USES = """
import sys
import numpy as np
from models.frameworks import open_framework
adapter = open_framework(NAME, device="cpu", threads=1, precision="float32", seed=0)
import models, tensorflow as tf
from models.contract import OptimizerConfig
rnn = sys.modules["keras.src.backend.tensorflow.rnn"]
calls = []
def cudnn(*_):
    calls.append(model)
    raise tf.errors.NotFoundError(None, None, "no such operator on a CPU")
rnn._is_gpu_available, rnn._cudnn_lstm = lambda: True, cudnn
layers = []
for model in ("gnmt", "tacotron2", "caption_decoder"):
    spec, batch = models.spec(model).probe(np.random.default_rng(0), full=False)
    network = adapter.build(model, spec)
    layers += [at.use_cudnn for at in network._flatten_layers() if hasattr(at, "use_cudnn")]
# the quickest to compile
adapter.train_step(network, adapter.optimizer(network, OptimizerConfig("sgd", 0.1)), batch)
result = [adapter.versions()["keras_use_cudnn"], layers, bool(calls)]
"""
# The tags of a cell's network; then of one with a layer that XLA cannot compile.
DECIDED = """
from types import SimpleNamespace
import numpy as np
from models.frameworks import open_framework
adapter = open_framework(NAME, device="cpu", threads=1, precision="float32", seed=0)
if DEVICE == "cuda":  # the device that Keras looks for
    import tensorflow as tf
    tf.config.list_physical_devices = lambda *_: [SimpleNamespace(device_type="GPU")]
import models
from experiments.cell.measure import record_implementation
from models.contract import OptimizerConfig
tags = []
spec, _ = models.spec("lenet").probe(np.random.default_rng(0), full=False)
for supports in (True, False):
    network = adapter.build("lenet", spec)
    for layer in list(network._flatten_layers())[-1:]:
        layer.supports_jit = supports
    optimizer = adapter.optimizer(network, OptimizerConfig("adam", 0.1))
    output = SimpleNamespace(record=lambda record: tags.append(dict(record.values)))
    cell = SimpleNamespace(run="r", framework=NAME, device=DEVICE)
    record_implementation(cell, adapter, network, optimizer, output)
result = [[at.get("jit_compile"), at.get("jit_compile.planned")] for at in tags]
"""


@pytest.mark.parametrize(
    ("framework", "use_cudnn"), [("tensorflow", "auto"), ("tensorflow+xla", False)]
)
def test_only_layers_outside_of_xla_may_use_cudnn(framework: str, use_cudnn: object) -> None:
    version, layers, is_called = result_of(framework, f"NAME = {framework!r}\n{USES}")
    assert version == str(use_cudnn)
    assert len(layers) > 4
    assert set(layers) == {use_cudnn}
    assert is_called == (use_cudnn == "auto")


@pytest.mark.parametrize(
    ("framework", "device", "decided"),
    [
        ("keras-tensorflow", "cuda", [["True", "True"], ["False", "True"]]),
        ("tensorflow", "cpu", [["False", "False"]] * 2),
        ("tensorflow+xla", "cpu", [["True", "True"]] * 2),
        pytest.param("keras-jax", "cpu", [["True", "True"]], marks=pytest.mark.slow),
        ("keras-torch", "cpu", [[None, None]] * 2),
    ],
)
def test_cell_records_whether_its_network_is_compiled(
    framework: str, device: str, decided: list[list[str | None]]
) -> None:
    """Keras looks for a GPU, and checks that XLA can compile each layer."""
    if reason := missing(framework):
        pytest.skip(reason)
    script = f"NAME, DEVICE = {framework!r}, {device!r}\n{DECIDED}"
    assert result_of(framework, script)[: len(decided)] == decided


@pytest.mark.parametrize(
    ("device", "versions", "recorded"),
    [
        ("cuda", {"keras_use_cudnn": "False"}, "False"),
        ("cuda", {}, None),
        ("cpu", {"keras_use_cudnn": "auto"}, None),
    ],
)
def test_cell_on_a_gpu_records_the_use_of_cudnn(
    device: str, versions: dict[str, str], recorded: str | None
) -> None:
    framework: Any = SimpleNamespace(
        device=device,
        versions=lambda: versions,
        optimizer_implementation=lambda _: "fused",
        jit_compile=lambda _: None,
    )
    tags: dict[str, str] = {}
    output: Any = SimpleNamespace(record=lambda record: tags.update(record.values))
    cell: Any = SimpleNamespace(run="1")
    measure.record_implementation(cell, framework, None, None, output)
    assert tags.get("keras.use_cudnn") == recorded


def test_report_names_variants_that_were_compiled_otherwise() -> None:
    decided = {"as planned": "True", "against": "False", "in turns": "False, True"}
    levels = {level: {JIT_COMPILE: text, JIT_PLANNED: "True"} for level, text in decided.items()}
    warnings = runs.eager_warnings({**levels, "pytorch": {}})
    assert [warning.code for warning in warnings] == [WarningCode.COMPILED_OTHERWISE] * 2
    assert ["against" in warnings[0].text, "in turns" in warnings[1].text] == [True, True]


RATES = """
import numpy as np, torch
import models
from models.contract import OptimizerConfig
from models.frameworks import open_framework
result, module = [], models.spec("lenet")
for precision in ("float64", "float32"):
    framework = open_framework(name, device="cpu", threads=1, precision=precision, seed=0)
    for kind in ("adam", "sgd"):
        kernel = f"_fused_{kind}_"
        run, rng = getattr(torch, kernel), np.random.default_rng(0)
        spec, batch = module.probe(rng)
        network = framework.build("lenet", spec)
        optimizer = framework.optimizer(network, OptimizerConfig(kind, 0.001))
        def seen(*tensors, lr, **options):
            result.append([precision, kind, str(getattr(lr, "dtype", type(lr).__name__))])
            return run(*tensors, lr=lr, **options)
        setattr(torch, kernel, seen)
        framework.train_step(network, optimizer, batch)
        setattr(torch, kernel, run)
"""


def test_learning_rate_is_one_that_kernels_of_a_gpu_read() -> None:
    """They take a tensor's memory for float32, so a rate in float64 is a number."""
    assert result_of("keras-torch", RATES) == [
        [precision, kind, rate]
        for precision, rate in (("float64", "float"), ("float32", "torch.float32"))
        for kind in ("adam", "sgd")
    ]
