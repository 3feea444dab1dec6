"""Equal work: the optimizer's kernels, the arithmetic of each operation, and what another process compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from models.errors import ModelError
from models.frameworks import missing
from models.frameworks.devices import OPERATIONS, OVERRIDES, verify_arithmetic
from models.frameworks.keras.jax import MATMUL_PRECISION
from tests.models.children import ROOT, answer

OPENED = """
import json
import torch
from models.contract import OptimizerConfig
from models.frameworks import open_framework
framework = open_framework("pytorch", device="cpu", threads=1, precision="float32", seed=0)
"""
KERNELS = """
from models.frameworks.pytorch.seen import _CalledOperators
network = torch.nn.Linear(3, 2)
def called(optimizer):
    network(torch.ones(1, 3)).sum().backward()
    with _CalledOperators() as operators:
        optimizer.step()
    return sorted(operators.names)
stock = framework.optimizer(network, OptimizerConfig("adam-stock", 0.1))
default = torch.optim.Adam(network.parameters(), lr=0.1)
several = torch.optim.Adam(network.parameters(), lr=0.1, foreach=True)
before = framework.weights(network)
told = framework.optimizer_implementation(stock)
assert all((before[name] == kept).all() for name, kept in framework.weights(network).items())
print(json.dumps({
    "set": [stock.param_groups[0]["fused"], stock.param_groups[0]["foreach"]],
    "names": [told, framework.optimizer_implementation(several),
              framework.optimizer_implementation(framework.optimizer(network, OptimizerConfig("adam", 0.1))),
              framework.optimizer_implementation(framework.optimizer(network, OptimizerConfig("sgd", 0.1)))],
    "stock": called(stock), "default": called(default),
}))
"""


def test_the_stock_optimizer_is_pytorchs_default_and_is_named_by_the_kernels_that_ran() -> None:
    """With `fused=False` PyTorch would not choose foreach on a GPU; the tests in tests/gpu compare the kernels there."""
    found = answer("pytorch", OPENED + KERNELS)
    assert found["set"] == [None, None]
    assert found["stock"] == found["default"]
    assert found["names"] == [
        "torch.optim.Adam: one tensor after another",
        "torch.optim.Adam: foreach",
        "torch.optim.Adam: fused",
        "torch.optim.SGD: fused",
    ]


SWITCHES = """
from models.frameworks.pytorch import device
found = {}
for arithmetic in ("tf32", "ieee"):
    torch.backends.fp32_precision = "none"
    torch.backends.cudnn.conv.fp32_precision = torch.backends.cudnn.rnn.fp32_precision = "tf32"
    device._set_arithmetic(torch, arithmetic)
    of_gpu = device.TorchDevice.__new__(device.TorchDevice)
    of_gpu._torch, of_gpu.name = torch, "cuda"
    older = [torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32]
    found[arithmetic] = [sorted(set(of_gpu._arithmetic().values())), older, torch.get_float32_matmul_precision()]
versions = framework.versions()
found["versions"] = {name: text for name, text in versions.items() if name.endswith("_precision")}
device._set_arithmetic = lambda *_: None
torch.backends.mkldnn.conv.fp32_precision = "tf32"
try:
    open_framework("pytorch", device="cpu", threads=1, precision="float32", seed=0)
except Exception as error:
    found["refused"] = [type(error).__name__, str(error)]
print(json.dumps(found))
"""


def test_pytorchs_switches_are_set_one_by_one_and_agree_with_the_older_ones() -> None:
    """cuDNN's are tf32 before, as in PyTorch 2.11, where the switch for all of them does not reach these."""
    found = answer("pytorch", OPENED + SWITCHES)
    assert found["tf32"] == [["tf32"], [True, True], "high"]
    assert found["ieee"] == [["ieee"], [False, False], "highest"]
    assert found["versions"] == {f"torch_{operation}_precision": "ieee" for operation in OPERATIONS}
    kind, message = found["refused"]
    assert kind == "ModelError"
    assert "torch would compute its convolution operations in tf32, not in ieee" in message


@pytest.mark.parametrize(
    ("framework", "library"), [("tensorflow", "tensorflow"), ("keras-jax", "jax")]
)
def test_other_libraries_record_the_same_of_each_operation(framework: str, library: str) -> None:
    if reason := missing(framework):
        pytest.skip(reason)
    versions = answer(
        framework,
        OPENED.replace('"pytorch"', f'"{framework}"').replace("import torch\n", "")
        + "print(json.dumps(framework.versions()))",
    )
    assert [versions[f"{library}_{operation}_precision"] for operation in OPERATIONS] == [
        "ieee"
    ] * 3


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16", "float64"])
def test_another_arithmetic_is_refused_for_each_operation(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in OVERRIDES:
        monkeypatch.delenv(variable, raising=False)
    right, wrong = ("tf32", "ieee") if precision == "tf32" else ("ieee", "tf32")
    assert set(MATMUL_PRECISION) == {right, wrong}
    verify_arithmetic("library", precision, dict.fromkeys(OPERATIONS, right))
    for operation in OPERATIONS:
        with pytest.raises(
            ModelError, match=f"its {operation} operations in {wrong}, not in {right}"
        ):
            verify_arithmetic(
                "library", precision, dict.fromkeys(OPERATIONS, right) | {operation: wrong}
            )


@pytest.mark.parametrize("variable", OVERRIDES)
def test_a_variable_that_overrides_the_switches_is_refused(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ModelError, match=f"{variable}=1 changes the arithmetic"):
        verify_arithmetic("library", "float32", dict.fromkeys(OPERATIONS, "ieee"))


CELL = """
import json, os, sys
from pathlib import Path
from types import SimpleNamespace
from experiments.cell.__main__ import opened
settings = {"malloc": "system", "precision": "float32", "seed": 0, "conv_algorithm": "profiled"}
framework = opened(SimpleNamespace(framework=sys.argv[1], device="cpu", threads=1, block=1, settings=settings, environment={}))
folders = [os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"]]
entries = [len(list(Path(folder).glob("*"))) for folder in folders]
from torch._inductor.runtime.cache_dir_utils import cache_dir
(Path(folders[0]) / "program").touch()
print(json.dumps([folders, entries, cache_dir()]))
"""


def test_every_cell_compiles_into_a_folder_of_its_own(tmp_path: Path) -> None:
    """Whatever its study: two cells that inherit a user's folders, in which another process' programs are."""
    if reason := missing("pytorch+compile"):
        pytest.skip(reason)
    inherited = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
    }
    for folder in inherited.values():
        Path(folder).mkdir()
        (Path(folder) / "program").touch()
    cells = []
    for _ in range(2):
        command = [sys.executable, "-c", CELL, "pytorch+compile"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **inherited},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        cells.append(json.loads(done.stdout.splitlines()[-1]))
    for folders, entries, used in cells:
        assert entries == [0, 0]
        assert used == folders[0]
        assert not Path(folders[0]).exists()  # removed when the cell ended
    assert len({*cells[0][0], *cells[1][0], *inherited.values()}) == 6
    assert [path.name for folder in inherited.values() for path in Path(folder).iterdir()] == [
        "program"
    ] * 2


DENORMALS = """
import json
import sys
from models.frameworks import open_framework
framework = open_framework(sys.argv[1], device="cpu", threads=2, precision="float32", seed=0)
versions = framework.versions()
print(json.dumps([text for name, text in versions.items() if name.endswith("_flushes_denormals")]))
"""


@pytest.mark.parametrize(
    "framework",
    [
        "pytorch",
        "tensorflow",
        "keras-jax",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("keras-torch", "keras-tensorflow")
        ),
    ],
)
def test_denormals_are_flushed_in_every_framework_on_all_of_its_threads(framework: str) -> None:
    """Half of the smallest normal number, a million times, computed by the framework."""
    if reason := missing(framework):
        pytest.skip(reason)
    assert answer(framework, DENORMALS, framework) == ["True"]


THREADS = """
import json
import sys
from models.frameworks import open_framework
framework = open_framework(sys.argv[1], device="cpu", threads=3, precision="float32", seed=0)
print(json.dumps(framework.versions()))
"""


@pytest.mark.parametrize(
    ("framework", "names"),
    [
        ("pytorch", ("torch_threads", "torch_inter_op_threads")),
        ("tensorflow", ("tensorflow_intra_op_threads", "tensorflow_inter_op_threads")),
        ("keras-jax", ("jax_threads",)),
    ],
)
def test_every_pool_has_as_many_threads(framework: str, names: tuple[str, ...]) -> None:
    if reason := missing(framework):
        pytest.skip(reason)
    versions = answer(framework, THREADS, framework)
    assert [versions[name] for name in names] == ["3"] * len(names)


AUTOCAST = """
import json
import torch
from torch import nn
from models.contract import ModelError
from models.frameworks.pytorch.adapter import check_autocast
def refused(check, *arguments):
    try:
        check(*arguments)
    except ModelError as error:
        return str(error)
    return ""
network = nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2))
found = [refused(check_autocast, network, device) for device in ("cuda", "cpu")]
found.append(refused(check_autocast, nn.Sequential(nn.Linear(2, 2), nn.LSTMCell(2, 2)), "cuda"))
with torch.autocast("cpu", torch.bfloat16):
    found.append(str(network(torch.ones(3, 2))[0].dtype))
print(json.dumps(found))
"""


def test_bfloat16_lstms_are_refused_where_pytorch_would_compute_in_float16() -> None:
    on_gpu, on_cpu, cells, dtype = answer("pytorch", AUTOCAST)
    assert (
        on_gpu
        == "precision 'bfloat16': PyTorch computes 1 (nn.LSTM) in float16 on a GPU; use float32 or tf32"
    )
    assert (on_cpu, cells, dtype) == ("", "", "torch.bfloat16")


COMPILERS = """
import json
import os
import sys
from models.contract import ModelError
from models.frameworks import missing
from models.frameworks.pytorch.adapter import _check_compiler
for variable in ("CC", "CXX"):
    os.environ.pop(variable, None)
found = []
for names in ((), ("gcc",), ("gcc", "g++")):
    folder = os.path.join(sys.argv[1], "-".join(names) or "none")
    os.makedirs(folder)
    for name in names:
        os.symlink("/bin/true", os.path.join(folder, name))
    os.environ["PATH"] = folder
    refused = []
    for device in ("cpu", "cuda"):
        try:
            _check_compiler(device)
            refused.append(False)
        except ModelError:
            refused.append(True)
    found.append([bool(missing("pytorch+compile")), *refused])
print(json.dumps(found))
"""


def test_a_gpu_needs_a_c_compiler_only(tmp_path: Path) -> None:
    """By what is installed: whether the variant is missing anywhere, on the CPU, on a GPU."""
    found = answer("pytorch", COMPILERS, str(tmp_path))
    assert found == [[True, True, True], [False, True, False], [False, False, False]]


FIRST_STEP = """
import time
from types import SimpleNamespace
from experiments.cell.__main__ import opened
settings = {"malloc": "system", "precision": "float32", "seed": 0, "conv_algorithm": "profiled"}
opened(SimpleNamespace(framework="pytorch+compile", device="cpu", threads=1, block=1, settings=settings, environment={}))
import torch
step = torch.compile(lambda x: (x.sin() + x.cos()).sum())
began = time.perf_counter()
step(torch.ones(1000))
print(time.perf_counter() - began)
"""


@pytest.mark.slow
def test_the_first_step_is_equally_cold_in_a_later_block() -> None:
    """Within a factor of 3: a busy machine adds that much, and a full cache saves more, as no C++ compiler runs."""
    if reason := missing("pytorch+compile"):
        pytest.skip(reason)
    first, later = (
        float(
            subprocess.check_output(
                [sys.executable, "-c", FIRST_STEP], cwd=ROOT, text=True, timeout=400
            )
        )
        for _ in range(2)
    )
    assert first / 3 < later < 3 * first
