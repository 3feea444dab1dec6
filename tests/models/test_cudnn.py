"""Which recurrent layers may become cuDNN's operator: Keras takes it wherever it sees a GPU, and XLA cannot compile it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from experiments.cell import measure
from experiments.comparison.report import remarks
from models.frameworks import missing
from tests.models.children import answer
from tracking.records import JIT_COMPILE, JIT_PLANNED, Tags

MODELS = ("caption_decoder", "gnmt", "deepspeech2", "tacotron2")
# Here Keras believes that there is a GPU, and cuDNN's operator is an operator that XLA does not know: a function of Python.
CHILD = """
import json, sys
import numpy as np
from models.frameworks import lean_import, open_framework
framework, *names = sys.argv[1:]
with lean_import(framework):
    adapter = open_framework(framework, device="cpu", threads=1, precision="float32", seed=0)
import models, tensorflow as tf
from models.contract import OptimizerConfig
rnn = sys.modules["keras.src.backend.tensorflow.rnn"]
calls = []
def cudnn(inputs, *others):
    calls.append(model)
    raise tf.errors.NotFoundError(None, None, "no such operator on a CPU")
rnn._is_gpu_available, rnn._cudnn_lstm = lambda: True, cudnn
found = {}
for model in names:
    calls.clear()
    rng = np.random.default_rng(0)
    spec, batch = models.spec(model).probe(rng, full=False)
    network = adapter.build(model, spec)
    layers = [layer for layer in network._flatten_layers() if hasattr(layer, "use_cudnn")]
    network([tf.constant(array) for array in batch.inputs])  # without XLA, which takes long
    asked = len(calls)
    if model == "caption_decoder":  # the quickest to compile
        adapter.train_step(network, adapter.optimizer(network, OptimizerConfig("sgd", 0.1)), batch)
    found[model] = {"use_cudnn": [layer.use_cudnn for layer in layers], "asked": asked, "calls": len(calls)}
print(json.dumps({"models": found, "version": adapter.versions()["keras_use_cudnn"]}))
"""


@pytest.mark.parametrize(
    ("framework", "use_cudnn"),
    [
        ("tensorflow", "auto"),
        pytest.param("tensorflow+eager", "auto", marks=pytest.mark.slow),
        ("tensorflow+xla", False),
    ],
)
def test_only_what_xla_does_not_compile_may_use_cudnn(framework: str, use_cudnn: object) -> None:
    if reason := missing(framework):
        pytest.skip(reason)
    found = answer(framework, CHILD, framework, *MODELS)
    assert found["version"] == str(use_cudnn)
    for model in MODELS:
        layers = found["models"][model]["use_cudnn"]
        assert set(layers) == {use_cudnn}, model
        assert bool(found["models"][model]["asked"]) == (use_cudnn == "auto"), (
            "no layer is left out"
        )
    assert bool(found["models"]["caption_decoder"]["calls"]) == (use_cudnn == "auto"), (
        "Keras asked for cuDNN's operator"
    )


class Recording:
    """Keeps the tags of a cell."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}

    def record(self, record: Tags) -> None:
        self.tags |= record.values


@pytest.mark.parametrize(
    ("device", "versions", "recorded"),
    [
        ("cuda", {"keras_use_cudnn": "False"}, "False"),
        ("cuda", {}, None),
        ("cpu", {"keras_use_cudnn": "auto"}, None),
    ],
)
def test_a_cell_on_a_gpu_records_which(
    device: str, versions: dict[str, str], recorded: str | None
) -> None:
    framework = SimpleNamespace(
        device=device,
        versions=lambda: versions,
        optimizer_implementation=lambda _: "fused",
        jit_compile=lambda _: None,
    )
    output = Recording()
    measure.record_implementation(SimpleNamespace(run="1"), framework, None, None, output)  # type: ignore[arg-type]
    assert output.tags.get("keras.use_cudnn") == recorded


# What a cell records of its network; then of one with a layer that XLA cannot compile.
DECIDED = """
import json, sys
from types import SimpleNamespace
import numpy as np
from models.frameworks import lean_import, open_framework
framework, device = sys.argv[1:]
with lean_import(framework):
    adapter = open_framework(framework, device="cpu", threads=1, precision="float32", seed=0)
if device == "cuda":  # what Keras asks for
    import tensorflow as tf
    tf.config.list_physical_devices = lambda *_: [SimpleNamespace(device_type="GPU")]
import models
from experiments.cell.measure import record_implementation
from models.contract import OptimizerConfig
found = []
spec, _ = models.spec("lenet").probe(np.random.default_rng(0), full=False)
for supports in (True, False):
    network = adapter.build("lenet", spec)
    for layer in list(network._flatten_layers())[-1:]:
        layer.supports_jit = supports
    optimizer = adapter.optimizer(network, OptimizerConfig("adam", 0.1))
    output = SimpleNamespace(record=lambda record: found.append(dict(record.values)))
    record_implementation(SimpleNamespace(run="r", framework=framework, device=device), adapter, network, optimizer, output)
print(json.dumps([[tags.get("jit_compile"), tags.get("jit_compile.planned")] for tags in found]))
"""


@pytest.mark.parametrize(
    ("framework", "device", "decided"),
    [
        pytest.param("tensorflow", "cpu", [["False", "False"]] * 2, marks=pytest.mark.slow),
        pytest.param("tensorflow+eager", "cpu", [["False", "False"]] * 2, marks=pytest.mark.slow),
        pytest.param("tensorflow+xla", "cpu", [["True", "True"]] * 2, marks=pytest.mark.slow),
        pytest.param("keras-tensorflow", "cpu", [["False", "False"]] * 2, marks=pytest.mark.slow),
        ("keras-tensorflow", "cuda", [["True", "True"], ["False", "True"]]),
        ("keras-jax", "cpu", [["True", "True"], ["False", "True"]]),
        ("keras-torch", "cpu", [[None, None]] * 2),
    ],
)
def test_a_cell_records_what_keras_decided(
    framework: str, device: str, decided: list[list[str | None]]
) -> None:
    """Keras asks for a GPU, and each layer whether XLA can compile it.

    The other variants are what their name states.
    """
    if reason := missing(framework):
        pytest.skip(reason)
    assert answer(framework, DECIDED, framework, device) == decided


def test_a_report_names_what_was_compiled_otherwise() -> None:
    """Against the plan, or otherwise in one block than in another; neither as planned nor where nothing is recorded."""
    decided = {"as planned": "True", "against": "False", "in turns": "False, True"}
    levels = {level: {JIT_COMPILE: text, JIT_PLANNED: "True"} for level, text in decided.items()}
    lines = remarks.on_eager({**levels, "pytorch": {}})
    assert [line.split(": ")[0] for line in lines] == [
        "COMPILED OTHERWISE, against",
        "COMPILED OTHERWISE, in turns",
    ]
