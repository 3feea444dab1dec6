"""Code inside the clock: the same work in each framework, and nothing else."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.errors import ErrorCode, ModelError
from models.frameworks import missing, trained
from models.frameworks.devices import OPERATIONS, OVERRIDES, verify_arithmetic
from tests.models.children import ROOT, result_of, run_python
from tests.models.test_contract import QUICK, slow_unless

PLAIN_LOOPS = ("pytorch", "tensorflow", "jax")
PRELUDE = """
import json, sys
from importlib import import_module
import numpy as np
import models
from models import frameworks
from models.contract import Batch, ModelError, OptimizerConfig
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
    options |= {"device": "cpu", "threads": 3, "precision": precision, "seed": 0}
    framework = open_framework(name, **options)
    module, rng = models.spec(model), np.random.default_rng(0)
    spec, batch = module.probe(rng)
    network = framework.build(model, spec)
    framework.load_weights(network, module.initial_weights(spec, rng))
    return framework, network, batch, framework.optimizer(network, OptimizerConfig("adam", 1e-3))


"""
# Of each framework.
VERSIONS = """
result = {}
for algorithm in ("heuristic", "fixed", "profiled") if name == "pytorch" else ("profiled",):
    framework, *_ = opened(name, "lenet", conv_algorithm=algorithm)
    result[algorithm] = framework.versions()
"""
EVEN = """
framework, network, batch, _ = opened(name, "lenet")
batch, halves = (
    Batch(batch.inputs, batch.targets, np.full(len(batch.targets), weight, np.float32))
    for weight in (1, 0.5)
)
clock, before = Clock(), framework.weights(network)
even = [framework.place(batch).uniform_weights]
for trained in (batch, halves, batch):
    framework.load_weights(network, before)
    optimizer = framework.optimizer(network, OptimizerConfig("sgd", 1e-1))
    framework.train_epoch(network, optimizer, [trained], clock)
result = [clock.losses, even + [framework.place(at).uniform_weights for at in (batch, halves)]]
"""
PLAIN = """
module, rng = models.spec("lenet"), np.random.default_rng(5)
weights = module.initial_weights(module.Spec(), rng)
images = rng.standard_normal((6, 28, 28, 1)).astype(np.float32)
labels = rng.integers(0, 10, 6, dtype=np.int32)
framework, network, *_ = opened(name, "lenet")
bare = models.load("lenet", framework.architecture).build(module.Spec())
plain = import_module(f"tests.plain_loops.{name}").Plain(
    bare, weights, images, labels, framework.device
)
framework.load_weights(network, weights)
answers = [plain.requests()().tolist(), framework.infer(network, (images,)).tolist()]
step, clock = plain.steps(1e-2), Clock()
batch = framework.place(Batch((images,), labels, np.ones(6, np.float32)))
optimizer = framework.optimizer(network, OptimizerConfig("adam-stock", 1e-2))
framework.train_epoch(network, optimizer, [batch] * 8, clock)
result = [answers, [step() for _ in range(8)], clock.losses]
"""
PRECISION = """
from models.caption_decoder.decoding import decode
try:
    open_framework(name, device="cpu", threads=3, precision="tf32", seed=0)
except ModelError as error:
    result = {"tf32": error.code}
for precision in ("float32", "bfloat16"):
    values = result[precision] = {}
    for model in ("caption_decoder", "mobilenet_v2"):
        framework, network, batch, optimizer = opened(name, model, precision)
        logits = framework.infer(network, batch.inputs)
        loss, total = framework.evaluate(network, batch)
        framework.drop_nothing(network)
        losses = [float(framework.train_step(network, optimizer, batch)) for _ in range(3)]
        types = {str(array.dtype) for array in (logits, *framework.weights(network).values())}
        values[model] = [logits.tolist(), loss / total, losses, sorted(types)]
        if model == "caption_decoder":
            limits = {"start": 1, "end": 2, "words": 4, "beams": 3}
            values["captions"] = decode(framework, network, batch.inputs[0], **limits).shape
"""
# Of some frameworks.
UPDATES = """
from collections import Counter
name = "tensorflow+eager" if name == "tensorflow" else name
framework, network, *_ = opened(name, "caption_decoder")
counted, variables = Counter(), network.trainable_variables
from keras import ops
gradients = [ops.ones_like(variable) for variable in variables]
for rule in ("adam", "sgd"):
    optimizer = framework.optimizer(network, OptimizerConfig(rule, 1e-3, 0.9 * (rule == "sgd")))
    if framework.backend == "torch":
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        class Recorder(TorchDispatchMode):
            def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
                counted[f"{rule} {operator._schema.name}"] += 1
                return operator(*args, **(kwargs or {}))

        with Recorder(), torch.no_grad():
            optimizer.apply(gradients, variables)
    else:
        from tensorflow.python.framework import op_callbacks

        def count(kind, *_, **__):
            counted[f"{rule} {kind.decode() if isinstance(kind, bytes) else kind}"] += 1

        op_callbacks.add_op_callback(count)
        optimizer.apply(gradients, variables)
        op_callbacks.remove_op_callback(count)
result = [len(variables), counted]
"""
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
        result.append([error.code, str(error)])
"""
PLACED = """
result = {}
for model in ("caption_decoder", "bert", "lenet"):
    framework, _, batch, _ = opened("pytorch", model)
    placed = framework.place(batch)
    types = sorted({str(array.dtype) for array in placed.inputs})
    result[model] = [types, str(placed.targets.dtype)]
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
STATE = """
framework, network, batch, optimizer = opened(name, "resnet18")
placed, waiting = framework.place(batch), 0
state = [*network.variables, *optimizer.variables]
for _ in range(30):
    framework.train_step(network, optimizer, placed).block_until_ready()
    waiting += sum(not variable.value.is_ready() for variable in state)
result = waiting
"""


@cache
def measured(framework: str, script: str) -> Any:
    if reason := missing(framework):
        pytest.skip(reason)
    return result_of(framework, PRELUDE + script)


@pytest.mark.parametrize("framework", PLAIN_LOOPS)
def test_plain_loop_is_the_same_training(framework: str) -> None:
    """Eight steps with each framework's own Adam; only the order of a sum may differ in float32."""
    answers, plain, ours = measured(framework, PLAIN)
    assert plain == pytest.approx(ours, rel=1e-4)
    assert plain[-1] < 0.9 * plain[0]
    np.testing.assert_allclose(*answers, rtol=1e-4, atol=1e-5)


# `contract` has the types, `transfer` carries weights into the network.
ALLOWED = {"__future__", "collections.abc", "typing", "models.contract", "models.transfer"}


@pytest.mark.parametrize("framework", [*PLAIN_LOOPS, "onnxruntime", "openvino"])
def test_plain_loop_imports_nothing_of_the_adapter(framework: str) -> None:
    path = ROOT / "tests" / "plain_loops" / f"{framework}.py"
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    modules = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    others = {"pytorch": {"torch"}, "jax": {"jax", "keras", "numpy"}}
    packages = others.get(framework, {framework, "numpy", "pathlib"})
    assert imported | {alias.name for alias in modules} <= ALLOWED | packages


@pytest.mark.parametrize("framework", slow_unless(QUICK, trained()))
def test_equal_weights_give_the_same_loss_with_and_without_them(framework: str) -> None:
    """The plain mean if all weights are 1; after the first other weight never again."""
    losses, even = measured(framework, EVEN)
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    assert even == [True, False, False]


@pytest.mark.parametrize("framework", slow_unless(QUICK, trained()))
def test_mixed_precision_rounds_and_nothing_else(framework: str) -> None:
    exact = measured("pytorch", PRECISION)["float32"]
    rounded = measured(framework, PRECISION)
    assert rounded["tf32"] == ErrorCode.NO_DEVICE
    for model in ("caption_decoder", "mobilenet_v2"):
        logits, loss, *_ = exact[model]
        mixed_logits, mixed_loss, losses, types = rounded["bfloat16"][model]
        difference = np.linalg.norm(np.array(mixed_logits) - np.array(logits))
        # eight bits of mantissa: 2⁻⁹ a rounding, a few dozen layers; float32 would be at 1e-6
        assert 1e-4 < difference / np.linalg.norm(logits) < 0.05
        assert mixed_loss == pytest.approx(loss, rel=0.02)
        assert np.isfinite(losses).all()
        assert types == ["float32"]
    assert rounded["bfloat16"]["captions"] == exact["captions"]


def test_pytorch_sets_the_mode_only_outside_of_the_clock() -> None:
    """`train()` and `eval()` walk over all modules: milliseconds if there are hundreds."""
    modes = dict(measured("pytorch", MODES))
    walks = modes.pop("walks")
    assert "inside" not in walks
    assert len(walks) <= 7  # there and back: epoch 2, gradients 3, step 2
    assert modes.pop("stepped") == [True]
    assert all(mode == [False] for mode in modes.values())


@pytest.mark.parametrize("name", ["pytorch", "pytorch+channels_last"])
def test_pytorch_places_types_and_layouts_outside_of_the_clock(name: str) -> None:
    """Classes as int64, images in the kernels' order of memory."""
    moved, channels_last = measured("pytorch", LAYOUTS)[name]
    assert moved == []
    assert channels_last == [name == "pytorch+channels_last"] * 2  # images and kernels


def test_bfloat16_logits_are_widened_on_the_host() -> None:
    assert measured("pytorch", WIDENED) == ["float32", ["cpu", "to", "numpy"]]


def test_pytorchs_optimizers_are_named_by_their_kernels() -> None:
    """Check the defaults: with `fused=False` PyTorch would not choose foreach on a GPU."""
    fused, foreach, texts = measured("pytorch", OPTIMIZERS)
    assert (fused, foreach) == (None, None)
    assert texts == {
        "adam": "torch.optim.Adam: fused",
        "sgd": "torch.optim.SGD: fused",
        "adam-stock": "torch.optim.Adam: one tensor after another",
        "foreach": "torch.optim.Adam: foreach",
    }


def test_pytorchs_switches_agree_with_the_older_ones() -> None:
    """CuDNN's are tf32 before; in PyTorch 2.11 the switch for all does not reach them."""
    assert measured("pytorch", SWITCHES) == {
        "tf32": [["tf32"], [True, True], "high"],
        "ieee": [["ieee"], [False, False], "highest"],
    }


def test_bfloat16_lstms_are_refused_on_a_gpu() -> None:
    on_gpu, on_cpu, cells = measured("pytorch", AUTOCAST)
    assert on_gpu[0] == ErrorCode.UNSUPPORTED
    assert "1 (LSTM)" in on_gpu[1]
    assert (on_cpu, cells) == ("", "")


def test_bfloat16_lstms_are_refused_on_a_cpu_that_cannot_compute_them() -> None:
    """OneDNN then uses the instructions of an older CPU, which has none for bfloat16."""
    script = f"import json\n{AUTOCAST}\nprint(json.dumps(result))"
    done = run_python("-c", script, ONEDNN_MAX_CPU_ISA="AVX2")
    _, (code, text), cells = json.loads(done.stdout)
    assert (code, cells) == (ErrorCode.UNSUPPORTED, "")
    assert "1 (LSTM)" in text


def test_convolutions_use_onednn_or_pytorchs_kernels() -> None:
    (has_onednn, outputs), (is_plain, plain_outputs) = measured("pytorch", ONEDNN).values()
    assert (has_onednn, is_plain) == (True, False)
    assert outputs == [pytest.approx(row, rel=1e-4, abs=1e-5) for row in plain_outputs]


def test_pytorch_records_its_switches() -> None:
    """Algorithms of convolutions as tried (cuDNN's benchmark) and as repeatable."""
    for algorithm, texts in measured("pytorch", VERSIONS).items():
        assert texts["torch_cudnn_benchmark"] == str(algorithm == "profiled")
        assert texts["torch_cudnn_deterministic"] == str(algorithm == "fixed")
        assert texts["torch_threads"] == texts["torch_inter_op_threads"] == "3"
        assert texts["torch_flushes_denormals"] == "True"
        assert {texts[f"torch_{name}_precision"] for name in OPERATIONS} == {"ieee"}


def test_pytorch_widens_targets_before_the_step_and_no_inputs() -> None:
    assert measured("pytorch", PLACED) == {
        "caption_decoder": [["torch.float32", "torch.int32"], "torch.int64"],
        "bert": [["torch.int32"], "torch.int64"],
        "lenet": [["torch.float32"], "torch.int64"],
    }


@pytest.mark.parametrize("framework", ["tensorflow", "keras-jax", "jax"])
def test_others_record_the_same_switches(framework: str) -> None:
    texts = measured(framework, VERSIONS)["profiled"]
    library = framework.removeprefix("keras-")
    assert {texts[f"{library}_{name}_precision"] for name in OPERATIONS} == {"ieee"}
    assert {texts[name] for name in texts if name.endswith("_threads")} == {"3"}
    assert texts[f"{library}_flushes_denormals"] == "True"
    assert "--xla_gpu_autotune_level=4" in texts["xla_flags"]
    assert texts.get("tensorflow_cudnn_autotune", "1") == "1"


def test_tensorflow_computes_corrections_once_a_step() -> None:
    variables, counted = measured("tensorflow", UPDATES)
    assert counted["adam Expm1"] == 2
    kernels = counted["adam ResourceApplyAdam"], counted["sgd ResourceApplyMomentum"]
    assert kernels == (variables, variables)


def test_jax_has_the_new_state_with_the_loss() -> None:
    """The clock ends at the loss: another result of the same function has to be there."""
    assert measured("jax", STATE) == 0


def test_keras_on_pytorch_updates_all_variables_in_one_kernel() -> None:
    variables, counted = measured("keras-torch", UPDATES)
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
import os
from pathlib import Path
from types import SimpleNamespace
from experiments.cell.opening import opened
from experiments.studies.captioning import Settings
settings = Settings()
spec = {"framework": name, "device": "cpu", "threads": 1, "block": 1}
opened(SimpleNamespace(**spec, settings=settings, environment={}))
folders = [os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"]]
entries = [len(list(Path(folder).glob("*"))) for folder in folders]
from torch._inductor.runtime.cache_dir_utils import cache_dir
(Path(folders[0]) / "program").touch()
result = [folders, entries, cache_dir()]
"""


def test_cell_compiles_into_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not use programs in folders of the user, and removes its own."""
    if reason := missing("pytorch+compile"):
        pytest.skip(reason)
    inherited = [tmp_path / name for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
    for folder in inherited:
        folder.mkdir()
        (folder / "program").touch()
        monkeypatch.setenv(folder.name, str(folder))
    folders, entries, used = result_of("pytorch+compile", CELL)
    assert entries == [0, 0]
    assert used == folders[0]
    assert not Path(folders[0]).exists()
    assert not {*folders} & {*map(str, inherited)}
    assert len(list(tmp_path.rglob("program"))) == 2
