"""Code inside the clock: the same work in each framework, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.errors import ErrorCode, ModelError
from models.frameworks import missing
from models.frameworks.devices import OPERATIONS, OVERRIDES, verify_arithmetic
from tests.models.children import answer, results_of, run_python

PRELUDE = """
import json, sys
import numpy as np
import models
from models.contract import Batch, OptimizerConfig
from models.frameworks import open_framework


class Clock:
    window_steps = 1

    def __init__(self):
        self.runs, self.losses = False, []

    def begin(self):
        self.runs = True

    def end(self, *losses):
        self.losses += map(float, losses)
        self.runs = False


def opened(name, model, precision="float32", **options):
    options = {"threads": 1, "precision": precision, **options}
    framework = open_framework(name, device="cpu", seed=0, **options)
    module, rng = models.spec(model), np.random.default_rng(0)
    spec, batch = module.probe(rng)
    network = framework.build(model, spec)
    framework.load_weights(network, module.initial_weights(spec, rng))
    return framework, network, batch, framework.optimizer(network, OptimizerConfig("adam", 1e-3))
"""


def told(script: str, framework: str, *arguments: str) -> Any:
    """Return the JSON in the last line that a script prints."""
    return answer(framework, PRELUDE + script, framework, *arguments)


MODES = """
import torch
framework, network, batch, optimizer = opened("pytorch", "caption_decoder")
clock, walks, walk = Clock(), [], network.train
def train(mode=True):
    walks.append("inside" if clock.runs else "outside")
    return walk(mode)
network.train = train
modes = lambda: sorted({module.training for module in network.modules()})
result = {"built": modes()}
framework.train_epoch(network, optimizer, [batch] * 3, clock)
result["trained"] = modes()
clock.begin()
for _ in range(3):
    framework.infer(network, batch.inputs)
clock.end(0.0)
framework.gradients(network, batch)
result["differentiated"] = modes()
framework.train_step(network, optimizer, batch)
result["stepped"] = modes()
framework.evaluate(network, batch)
result |= {"evaluated": modes(), "walks": walks}
"""
LAYOUTS = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Recorder(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        name = operator._schema.name
        if clock.runs and name in ("aten::_to_copy", "aten::clone", "aten::copy_"):
            moved.append((str(args[0].dtype), args[0].numel()))
        if clock.runs and name == "aten::convolution":
            layouts.append([at.is_contiguous(memory_format=torch.channels_last) for at in args[:2]])
        return operator(*args, **(kwargs or {}))


result = {}
for name in ("pytorch", "pytorch+channels_last"):
    framework, network, batch, optimizer = opened(name, "resnet18")
    clock, moved, layouts = Clock(), [], []
    with Recorder():
        framework.train_epoch(network, optimizer, [batch, batch], clock)
        request = framework.place_inputs(batch.inputs)
        clock.begin()
        framework.infer(network, request)
        clock.end(0.0)
    of_batch = ("torch.int32", len(batch.targets)), ("torch.float32", batch.inputs[0].size)
    columns = [all(column) for column in zip(*layouts)]
    result[name] = [[at for at in moved if at in of_batch], columns]
"""
WIDENED = """
from torch.overrides import TorchFunctionMode


class Recorder(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        called.append(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))


framework, network, batch, _ = opened("pytorch", "resnet18", "bfloat16")
inputs, called = framework.place_inputs(batch.inputs), []
with Recorder():
    logits = framework.infer(network, inputs)
names = [name for name in called if name in ("cpu", "to", "numpy")]
result = [str(logits.dtype), names]
"""
OPTIMIZERS = """
import torch
framework = open_framework("pytorch", device="cpu", threads=1, precision="float32", seed=0)
network = torch.nn.Linear(3, 2)
names = OptimizerConfig.NAMES
ours = {name: framework.optimizer(network, OptimizerConfig(name, 0.1)) for name in names}
ours["foreach"] = torch.optim.Adam(network.parameters(), lr=0.1, foreach=True)
group = ours["adam-stock"].param_groups[0]
texts = {name: framework.optimizer_implementation(at) for name, at in ours.items()}
result = [group["fused"], group["foreach"], texts]
"""
SWITCHES = """
import torch
from models.frameworks.pytorch import device
on_gpu = device.TorchDevice.__new__(device.TorchDevice)
on_gpu._torch, on_gpu.device = torch, "cuda"
result = {}
for arithmetic in ("tf32", "ieee"):
    torch.backends.fp32_precision = "none"
    torch.backends.cudnn.conv.fp32_precision = torch.backends.cudnn.rnn.fp32_precision = "tf32"
    device._set_arithmetic(torch, arithmetic)
    older = [torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32]
    newer = sorted(set(on_gpu._arithmetic().values()))
    result[arithmetic] = [newer, older, torch.get_float32_matmul_precision()]
"""
AUTOCAST = """
from torch import nn
from models.contract import ModelError
from models.frameworks.pytorch.adapter import check_autocast
result = []
for layer, device in ((nn.LSTM, "cuda"), (nn.LSTM, "cpu"), (nn.LSTMCell, "cuda")):
    try:
        check_autocast(nn.Sequential(nn.Linear(2, 2), layer(2, 2)), device)
        result.append("")
    except ModelError as error:
        result.append(str(error))
"""
ONEDNN = """
import torch
result = {}
for algorithm in ("onednn", "plain"):
    framework, network, batch, _ = opened("pytorch", "lenet", conv_algorithm=algorithm)
    with torch.profiler.profile() as profiler:
        outputs = framework.infer(network, batch.inputs)
    has_onednn = any("mkldnn" in event.key for event in profiler.key_averages())
    result[algorithm] = [has_onednn, outputs.tolist()]
"""
VERSIONS = """
name = {name!r}
result = {{}}
for algorithm in {algorithms!r}:
    options = {{"threads": 3, "precision": "float32", "conv_algorithm": algorithm}}
    framework = open_framework(name, device="cpu", seed=0, **options)
    result[algorithm] = framework.versions()
"""
UPDATES = """
from collections import Counter
framework, network, batch, _ = opened({name!r}, "caption_decoder", threads=3)
counted, variables = Counter(), network.trainable_variables
from keras import ops
gradients = [ops.ones_like(variable) for variable in variables]
for name in ("adam", "sgd"):
    optimizer = framework.optimizer(network, OptimizerConfig(name, 1e-3, 0.9 * (name == "sgd")))
    if framework.backend == "torch":
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        class Recorder(TorchDispatchMode):
            def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
                counted[f"{{name}} {{operator._schema.name}}"] += 1
                return operator(*args, **(kwargs or {{}}))

        with Recorder(), torch.no_grad():
            optimizer.apply(gradients, variables)
    else:
        from tensorflow.python.framework import op_callbacks

        def count(kind, *_, **__):
            counted[f"{{name}} {{kind.decode() if isinstance(kind, bytes) else kind}}"] += 1

        op_callbacks.add_op_callback(count)
        optimizer.apply(gradients, variables)
        op_callbacks.remove_op_callback(count)
result = [len(variables), counted]
"""


def results(framework: str, **scripts: str) -> dict[str, Any]:
    if reason := missing(framework):
        pytest.skip(reason)
    return results_of(framework, {name: PRELUDE + script for name, script in scripts.items()})


@pytest.fixture(scope="module")
def pytorch() -> dict[str, Any]:
    return results(
        "pytorch",
        versions=VERSIONS.format(name="pytorch", algorithms=("heuristic", "fixed", "profiled")),
        modes=MODES,
        layouts=LAYOUTS,
        widened=WIDENED,
        optimizers=OPTIMIZERS,
        autocast=AUTOCAST,
        onednn=ONEDNN,
        switches=SWITCHES,
    )


def test_pytorch_sets_the_mode_only_outside_of_the_clock(pytorch: dict[str, Any]) -> None:
    """`train()` and `eval()` walk over all modules: milliseconds if there are hundreds."""
    modes = dict(pytorch["modes"])
    walks = modes.pop("walks")
    assert "inside" not in walks
    assert len(walks) <= 7  # there and back: epoch 2, gradients 3, step 2
    assert modes.pop("stepped") == [True]
    assert all(mode == [False] for mode in modes.values())


@pytest.mark.parametrize("name", ["pytorch", "pytorch+channels_last"])
def test_pytorch_places_types_and_layouts_outside_of_the_clock(
    pytorch: dict[str, Any], name: str
) -> None:
    """Classes as int64, images in the kernels' order of memory."""
    moved, channels_last = pytorch["layouts"][name]
    assert moved == []
    assert channels_last == [name == "pytorch+channels_last"] * 2  # images and kernels


def test_bfloat16_logits_are_widened_on_the_host(pytorch: dict[str, Any]) -> None:
    assert pytorch["widened"] == ["float32", ["cpu", "to", "numpy"]]


def test_pytorchs_optimizers_are_named_by_their_kernels(pytorch: dict[str, Any]) -> None:
    """With `fused=False` PyTorch would not choose foreach on a GPU; tests/gpu compare there."""
    fused, foreach, texts = pytorch["optimizers"]
    assert (fused, foreach) == (None, None)
    assert texts == {
        "adam": "torch.optim.Adam: fused",
        "sgd": "torch.optim.SGD: fused",
        "adam-stock": "torch.optim.Adam: one tensor after another",
        "foreach": "torch.optim.Adam: foreach",
    }


def test_pytorchs_switches_agree_with_the_older_ones(pytorch: dict[str, Any]) -> None:
    """CuDNN's are tf32 before; in PyTorch 2.11 the switch for all does not reach them."""
    assert pytorch["switches"] == {
        "tf32": [["tf32"], [True, True], "high"],
        "ieee": [["ieee"], [False, False], "highest"],
    }


def test_bfloat16_lstms_are_refused_on_a_gpu(pytorch: dict[str, Any]) -> None:
    on_gpu, on_cpu, cells = pytorch["autocast"]
    assert "PyTorch computes 1 (nn.LSTM) in float16 on a GPU" in on_gpu
    assert (on_cpu, cells) == ("", "")


def test_convolutions_use_onednn_or_pytorchs_kernels(pytorch: dict[str, Any]) -> None:
    (has_onednn, outputs), (is_plain, plain_outputs) = pytorch["onednn"].values()
    assert (has_onednn, is_plain) == (True, False)
    assert outputs == [pytest.approx(row, rel=1e-4, abs=1e-5) for row in plain_outputs]


def test_pytorch_records_its_switches(pytorch: dict[str, Any]) -> None:
    """Algorithms of convolutions as tried (cuDNN's benchmark) and as repeatable."""
    for algorithm, texts in pytorch["versions"].items():
        assert texts["torch_cudnn_benchmark"] == str(algorithm == "profiled")
        assert texts["torch_cudnn_deterministic"] == str(algorithm == "fixed")
        assert texts["torch_threads"] == texts["torch_inter_op_threads"] == "3"
        assert texts["torch_flushes_denormals"] == "True"
        assert {texts[f"torch_{name}_precision"] for name in OPERATIONS} == {"ieee"}


@pytest.mark.parametrize(
    ("framework", "library", "threads"),
    [
        (
            "tensorflow",
            "tensorflow",
            ("tensorflow_intra_op_threads", "tensorflow_inter_op_threads"),
        ),
        ("keras-jax", "jax", ("jax_threads",)),
    ],
)
def test_others_record_the_same_switches(
    framework: str, library: str, threads: tuple[str, ...]
) -> None:
    script = VERSIONS.format(name=framework, algorithms=("profiled",))
    updates = {"updates": UPDATES.format(name="tensorflow+eager")}
    scripts = {"versions": script, **(updates if framework == "tensorflow" else {})}
    found = results(framework, **scripts)
    texts = found["versions"]["profiled"]
    assert {texts[f"{library}_{name}_precision"] for name in OPERATIONS} == {"ieee"}
    assert {texts[name] for name in threads} == {"3"}
    assert texts[f"{library}_flushes_denormals"] == "True"
    assert "--xla_gpu_autotune_level=4" in texts["xla_flags"]
    if framework == "tensorflow":
        assert texts["tensorflow_cudnn_autotune"] == "1"
        variables, counted = found["updates"]
        assert counted["adam Expm1"] == 2  # corrections are computed once a step
        kernels = counted["adam ResourceApplyAdam"], counted["sgd ResourceApplyMomentum"]
        assert kernels == (variables, variables)


def test_keras_on_pytorch_updates_all_variables_in_one_kernel() -> None:
    found = results("keras-torch", updates=UPDATES.format(name="keras-torch"))
    variables, counted = found["updates"]
    assert counted["adam aten::_fused_adam_"] == counted["sgd aten::_fused_sgd_"] == 1
    assert sum(counted.values()) < 2 * variables  # scalars, and nothing variable by variable


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16", "float64"])
def test_another_arithmetic_is_refused(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in OVERRIDES:
        monkeypatch.delenv(variable, raising=False)
    right, wrong = ("tf32", "ieee") if precision == "tf32" else ("ieee", "tf32")
    switches = dict.fromkeys(OPERATIONS, right)
    verify_arithmetic("library", precision, switches)
    for operation in OPERATIONS:
        with pytest.raises(ModelError, match=operation) as refused:
            verify_arithmetic("library", precision, switches | {operation: wrong})
        assert refused.value.code is ErrorCode.UNSUPPORTED
    for variable in OVERRIDES:
        monkeypatch.setenv(variable, "1")
        with pytest.raises(ModelError, match=f"{variable}=1") as refused:
            verify_arithmetic("library", precision, switches)
        assert refused.value.code is ErrorCode.ENVIRONMENT
        monkeypatch.delenv(variable)


CELL = """
import json, os, sys
from pathlib import Path
from types import SimpleNamespace
from experiments.cell.__main__ import opened
settings = {"malloc": "system", "precision": "float32", "seed": 0, "conv_algorithm": "profiled"}
spec = {"framework": "pytorch+compile", "device": "cpu", "threads": 1, "block": 1}
opened(SimpleNamespace(**spec, settings=settings, environment={}))
folders = [os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"]]
entries = [len(list(Path(folder).glob("*"))) for folder in folders]
from torch._inductor.runtime.cache_dir_utils import cache_dir
(Path(folders[0]) / "program").touch()
print(json.dumps([folders, entries, cache_dir()]))
"""


def test_a_cell_compiles_into_an_empty_folder(tmp_path: Path) -> None:
    """It does not use programs in folders of the user, and removes its own."""
    if reason := missing("pytorch+compile"):
        pytest.skip(reason)
    names = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
    inherited = {name: str(tmp_path / name) for name in names}
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "program").touch()
    done = run_python("-c", CELL, **inherited)
    folders, entries, used = json.loads(done.stdout.splitlines()[-1])
    assert entries == [0, 0]
    assert used == folders[0]
    assert not (tmp_path / folders[0]).exists()
    assert not set(folders) & set(inherited.values())
    assert len(list(tmp_path.rglob("program"))) == 2
