"""Runtimes compute what the network computes from which their file was exported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import models
from models import frameworks, own
from models.contract import Array, ErrorCode, Framework, ModelError
from models.frameworks.exported import AGREEMENT, LIMITS, OUTPUTS
from tests.models.children import run_python

RUNTIMES = sorted(set(frameworks.available()) - set(frameworks.trained()))
# Compiling machine code takes half a minute.
ALL = [
    pytest.param(name, marks=[pytest.mark.slow] if name == "pytorch+aot" else [])
    for name in RUNTIMES
]
SPEC = models.spec("lenet").Spec()
LAYERS = """
from torch import nn
from models.layers.pytorch import of_images


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Linear(784, 10)

    def forward(self, images):
        flat = images.flatten(1)
        return self.words(flat if images.sum() > 0 else -flat)


def build(spec):
    return of_images(Branching())
"""
SIZES = """
from dataclasses import dataclass
from typing import ClassVar
from models.layers.images import ImageSpec, Shapes


@dataclass(frozen=True)
class Spec(ImageSpec):
    channels: ClassVar[int] = 1
    only_side: ClassVar[int] = 28

    def shapes(self):
        shapes = Shapes()
        shapes.linear("words", 10, 784)
        return shapes
"""


def branching_model(place: Path) -> Path:
    """Return a user's model that no exporter takes: the values of a batch decide on its path."""
    folder = place / "branching"
    folder.mkdir()
    (folder / "spec.py").write_text(SIZES)
    (folder / "pytorch.py").write_text(LAYERS)
    return folder


def in_a_thread(test: Callable[..., None]) -> Callable[..., None]:
    """Let a test compute in a thread of its own: runtimes make it take denormal numbers for 0."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(test, *arguments, **named).result()

    return run


def opened(name: str) -> Framework:
    with frameworks.lean_import(name):
        return frameworks.open_framework(name, device="cpu", threads=1, precision="float32", seed=0)


def deployed(
    name: str, folder: Path, model: str = "lenet", spec: Any = SPEC
) -> tuple[Framework, Any, dict[str, float]]:
    """Return a runtime, a network of seeded weights, and the metrics of its deployment."""
    runtime, module, rng = opened(name), models.spec(model), np.random.default_rng(0)
    network = runtime.build(model, spec)
    runtime.load_weights(network, module.initial_weights(spec, rng))
    metrics = runtime.deploy(network, module.inference_batches(spec, rng), folder)
    return runtime, network, metrics


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exported")


@pytest.fixture
def file(name: str, folder: Path) -> Iterator[Path]:
    """Yield LeNet's file for a runtime, restored afterwards."""
    with ThreadPoolExecutor(1) as pool:
        metrics = pool.submit(deployed, name, folder).result()[2]
    path = _path(folder, metrics)
    content = path.read_bytes()
    yield path
    path.write_bytes(content)


@pytest.mark.parametrize("name", ALL)
@in_a_thread
def test_file_computes_what_its_network_computes(name: str, folder: Path) -> None:
    runtime, network, metrics = deployed(name, folder)
    assert metrics["inference/load_seconds"] > 0
    is_exact = not frameworks.described(name).in_int8
    assert metrics["inference/file_bytes"] > (4 if is_exact else 1) * 61_706
    limit = LIMITS["float32"] if is_exact else 0.5
    assert limit / 1000 < metrics["check/export_error"] < limit / 10
    assert metrics[AGREEMENT] > 0.7
    assert is_exact <= (metrics[AGREEMENT] == 1)
    rng = np.random.default_rng(0)
    models.spec("lenet").initial_weights(SPEC, rng)  # draws, too
    batches = models.spec("lenet").inference_batches(SPEC, rng)
    for batch, expected in zip(batches, _expected(folder, metrics), strict=True):
        for inputs in (batch, runtime.place_inputs(batch)):
            np.testing.assert_allclose(
                runtime.infer(network, inputs), expected, rtol=0, atol=limit * abs(expected).max()
            )
    assert runtime.parameter_counts(network) == (61_706, 0)
    versions = runtime.versions()
    assert next(versions[key] for key in versions if key.endswith("_threads")) == "1"
    with pytest.raises(ModelError) as refused:
        runtime.optimizer(network, None)  # type: ignore[arg-type]
    assert refused.value.code is ErrorCode.UNSUPPORTED


def _path(folder: Path, metrics: dict[str, float]) -> Path:
    """Return LeNet's file, which has the size of the metrics."""
    size = metrics["inference/file_bytes"]
    return next(path for path in folder.glob("lenet-*") if path.stat().st_size == size)


def _expected(folder: Path, metrics: dict[str, float]) -> list[Array]:
    """Return the outputs beside the file."""
    with np.load(_path(folder, metrics).with_suffix(OUTPUTS)) as arrays:
        return list(arrays.values())


@pytest.mark.parametrize("name", ALL)
@in_a_thread
def test_measured_process_imports_no_framework(name: str, folder: Path) -> None:
    deployed(name, folder)
    script = """
import sys
from pathlib import Path
import numpy as np
import models
from models import frameworks
name, folder = sys.argv[1:]
runtime = frameworks.open_framework(name, device="cpu", threads=1, precision="float32", seed=0)
module, rng = models.spec("lenet"), np.random.default_rng(0)
network = runtime.build("lenet", module.Spec())
runtime.load_weights(network, module.initial_weights(module.Spec(), rng))
runtime.deploy(network, module.inference_batches(module.Spec(), rng), Path(folder))
print(*sorted({"torch", "onnx", "onnxscript", "tensorflow", "keras", "jax"} & sys.modules.keys()))
"""
    own = ["torch"] if name == "pytorch+aot" else []  # its packages need PyTorch's library
    assert run_python("-c", script, name, str(folder)).stdout.split() == own


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        *((name, 3) for name in ("litert", "onnxruntime", "openvino")),
        ("onnxruntime", np.nan),
        pytest.param("pytorch+aot", 3, marks=pytest.mark.slow),
        pytest.param("pytorch+aot", np.nan, marks=pytest.mark.slow),
    ],
)
@in_a_thread
def test_changed_weight_is_refused_and_named(
    name: str, factor: float, folder: Path, file: Path
) -> None:
    weights = models.spec("lenet").initial_weights(SPEC, np.random.default_rng(0))
    weight = list(weights)[-2]
    row = weights[weight][0]
    changed = row.copy()
    changed[7] *= factor
    content = file.read_bytes()
    assert content.count(row.tobytes()) == 1
    file.write_bytes(content.replace(row.tobytes(), changed.tobytes()))
    place = r"\S+" if file.suffix == ".tflite" else re.escape(weight)
    with pytest.raises(ModelError, match=rf"first in {place}$") as refused:
        deployed(name, folder)
    assert refused.value.code is ErrorCode.NOT_EQUAL


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("rows", [1, 3])
@in_a_thread
def test_fixed_number_of_rows_is_refused(name: str, rows: int, folder: Path, file: Path) -> None:
    fix(file, 0, 0, rows)
    with pytest.raises(ModelError, match=rf"does not take inputs of \({4 - rows}, ") as refused:
        deployed(name, folder)
    assert refused.value.code is ErrorCode.NOT_EQUAL


def fix(file: Path, at: int, axis: int, size: int) -> None:
    """Give an axis of an input one size, as an exporter may without a word."""
    graph = onnx.load(file)
    graph.graph.input[at].type.tensor_type.shape.dim[axis].dim_value = size
    onnx.save(graph, file)


@in_a_thread
def test_fixed_length_of_a_sequence_is_refused(tmp_path: Path) -> None:
    """Batches of the caption decoder have 8 and 16 words."""
    module = models.spec("caption_decoder")
    network = "caption_decoder", module.probe(np.random.default_rng(0))[0]
    metrics = deployed("onnxruntime", tmp_path, *network)[2]
    assert metrics["check/export_error"] < LIMITS["float32"] / 10
    (path,) = tmp_path.glob("*.onnx")
    fix(path, 1, 1, 16)
    with pytest.raises(ModelError, match=r"does not take inputs of .*\(1, 8\)") as refused:
        deployed("onnxruntime", tmp_path, *network)
    assert refused.value.code is ErrorCode.NOT_EQUAL


@pytest.mark.parametrize(
    "options", [{"precision": "bfloat16"}, {"conv_algorithm": "plain"}, {"device": "cuda"}]
)
@in_a_thread
def test_what_a_runtime_lacks_is_refused(options: dict[str, str]) -> None:
    settings = {"device": "cpu", "precision": "float32", **options}
    with pytest.raises(ModelError) as refused:
        frameworks.open_framework("onnxruntime", **settings, threads=1, seed=0)
    is_device = "device" in options
    assert refused.value.code is (ErrorCode.NO_DEVICE if is_device else ErrorCode.UNSUPPORTED)


@in_a_thread
def test_refusal_of_the_exporter_is_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(own.FOLDERS, "")
    name = own.add(branching_model(tmp_path))
    with pytest.raises(ModelError, match="data-dependent") as refused:
        deployed("onnxruntime", tmp_path, name, models.spec(name).Spec(classes=10))
    assert refused.value.code is ErrorCode.NOT_EXPORTED
