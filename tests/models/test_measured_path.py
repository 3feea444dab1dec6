"""What lies inside the clock is the same work in every framework, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.children import answer

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


def opened(name, model, precision="float32"):
    framework = open_framework(name, device="cpu", threads=1, precision=precision, seed=0)
    module, rng = models.spec(model), np.random.default_rng(0)
    spec, batch = module.probe(rng)
    network = framework.build(model, spec)
    framework.load_weights(network, module.initial_weights(spec, rng))
    return framework, network, batch, framework.optimizer(network, OptimizerConfig("adam", 1e-3))
"""


def told(script: str, framework: str, *arguments: str) -> Any:
    """What the script prints of the framework, as JSON in its last line."""
    return answer(framework, PRELUDE + script, framework, *arguments)


MODES = """
import torch
framework, network, batch, optimizer = opened("pytorch", "caption_decoder")
clock, walks, walk = Clock(), [], network.train
network.train = lambda mode=True: (walks.append("inside" if clock.runs else "outside"), walk(mode))[1]
modes = lambda: sorted({module.training for module in network.modules()})
found = {"built": modes()}
framework.train_epoch(network, optimizer, [batch] * 3, clock)
found["trained"] = modes()
clock.begin()
for _ in range(3):
    framework.infer(network, batch.inputs)
clock.end(0.0)
framework.gradients(network, batch)
found["differentiated"] = modes()
framework.train_step(network, optimizer, batch)
found["stepped"] = modes()
framework.evaluate(network, batch)
print(json.dumps({**found, "evaluated": modes(), "walks": walks}))
"""


def test_pytorch_sets_the_mode_when_it_changes_and_outside_of_the_clock() -> None:
    """`train()` and `eval()` walk over all modules: milliseconds where there are hundreds."""
    found = told(MODES, "pytorch")
    assert "inside" not in found["walks"]
    assert found["walks"].count("outside") <= 7  # there and back: epoch 2, gradients 3, step 2
    assert (
        found["built"]
        == found["trained"]
        == found["differentiated"]
        == found["evaluated"]
        == [False]
    )
    assert found["stepped"] == [True]


OPERATORS = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, given=(), named=None):
        name = operator._schema.name
        if clock.runs and name in ("aten::_to_copy", "aten::clone", "aten::copy_"):
            moved.append((str(given[0].dtype), given[0].numel()))
        if clock.runs and name == "aten::convolution":
            layouts.append([one.is_contiguous(memory_format=torch.channels_last) for one in given[:2]])
        return operator(*given, **(named or {}))


framework, network, batch, optimizer = opened(sys.argv[1], "resnet18")
clock, moved, layouts = Clock(), [], []
with Seen():
    framework.train_epoch(network, optimizer, [batch, batch], clock)
    request = framework.place_inputs(batch.inputs)
    clock.begin()
    framework.infer(network, request)
    clock.end(0.0)
ours = [one for one in moved if one in (("torch.int32", len(batch.targets)), ("torch.float32", batch.inputs[0].size))]
print(json.dumps({"moved": ours, "channels_last": [all(column) for column in zip(*layouts)]}))
"""


@pytest.mark.parametrize(
    ("framework", "channels_last"), [("pytorch", False), ("pytorch+channels_last", True)]
)
def test_pytorch_gets_its_own_types_and_layout_outside_of_the_clock(
    framework: str, channels_last: bool
) -> None:
    """Classes as int64 and images in the order of memory that the kernels want: made once, when a batch is placed."""
    found = told(OPERATORS, framework)
    assert found["moved"] == []
    assert found["channels_last"] == [channels_last] * 2  # images and kernels


WIDENED = """
import torch
from torch.overrides import TorchFunctionMode


class Seen(TorchFunctionMode):
    def __torch_function__(self, function, types, given=(), named=None):
        called.append(getattr(function, "__name__", ""))
        return function(*given, **(named or {}))


framework, network, batch, _ = opened("pytorch", "resnet18", "bfloat16")
inputs, called = framework.place_inputs(batch.inputs), []
with Seen():
    logits = framework.infer(network, inputs)
print(json.dumps({"dtype": str(logits.dtype), "called": [name for name in called if name in ("cpu", "to", "numpy")]}))
"""


def test_bfloat16_logits_leave_the_device_as_they_are() -> None:
    """TensorFlow's and Keras' are widened on the host, from half the bytes; PyTorch's too."""
    assert told(WIDENED, "pytorch") == {"dtype": "float32", "called": ["cpu", "to", "numpy"]}


UPDATES = """
from collections import Counter
framework, network, batch, _ = opened(sys.argv[1], "caption_decoder")
counted, variables = Counter(), network.trainable_variables
from keras import ops
gradients = [ops.ones_like(variable) for variable in variables]
for name in ("adam", "sgd"):
    optimizer = framework.optimizer(network, OptimizerConfig(name, 1e-3, 0.9 * (name == "sgd")))
    if framework.backend == "torch":
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        class Seen(TorchDispatchMode):
            def __torch_dispatch__(self, operator, types, given=(), named=None):
                counted[f"{name} {operator._schema.name}"] += 1
                return operator(*given, **(named or {}))

        with Seen(), torch.no_grad():
            optimizer.apply(gradients, variables)
    else:
        from tensorflow.python.framework import op_callbacks

        def seen(kind, *_, **__):
            counted[f"{name} {kind.decode() if isinstance(kind, bytes) else kind}"] += 1

        op_callbacks.add_op_callback(seen)
        optimizer.apply(gradients, variables)
        op_callbacks.remove_op_callback(seen)
print(json.dumps({"variables": len(variables), "counted": counted}))
"""


def test_keras_on_pytorch_updates_all_variables_in_one_kernel() -> None:
    """The one of torch.optim's fused optimizers; scalars aside, nothing is done variable by variable."""
    found = told(UPDATES, "keras-torch")
    assert (
        found["counted"]["adam aten::_fused_adam_"]
        == found["counted"]["sgd aten::_fused_sgd_"]
        == 1
    )
    assert sum(found["counted"].values()) < 2 * found["variables"]


def test_tensorflow_computes_corrections_once_a_step() -> None:
    found = told(UPDATES, "tensorflow+eager")
    counted, variables = found["counted"], found["variables"]
    assert counted["adam Expm1"] == 2
    assert counted["adam ResourceApplyAdam"] == counted["sgd ResourceApplyMomentum"] == variables


CONVOLUTIONS = """
framework = open_framework(sys.argv[1], device="cpu", threads=1, precision="float32", seed=0, conv_algorithm=sys.argv[2])
told = framework.versions()
if sys.argv[1] == "pytorch":
    import torch
    told["benchmark"] = torch.backends.cudnn.benchmark
print(json.dumps(told))
"""
# (PyTorch's benchmark, TensorFlow's autotuning, XLA's level), (PyTorch's determinism, TensorFlow's)
CHOSEN = {"profiled": (True, False), "heuristic": (False, False), "fixed": (False, True)}


@pytest.mark.parametrize(
    "algorithm",
    ["profiled", *(pytest.param(one, marks=pytest.mark.slow) for one in ("heuristic", "fixed"))],
)
def test_convolutions_are_chosen_alike(algorithm: str) -> None:
    """The switches that a GPU's libraries read; no GPU is asked here what it made of them."""
    tried, repeatable = CHOSEN[algorithm]
    torch = told(CONVOLUTIONS, "pytorch", algorithm)
    assert torch["benchmark"] is tried
    assert (torch["torch_cudnn_benchmark"], torch["torch_cudnn_deterministic"]) == (
        str(tried),
        str(repeatable),
    )
    tensorflow = told(CONVOLUTIONS, "tensorflow", algorithm)
    switches = (
        tensorflow["tensorflow_cudnn_autotune"],
        tensorflow["tensorflow_cudnn_deterministic"],
    )
    assert switches == (str(int(tried)), str(int(repeatable)))
    assert f"--xla_gpu_autotune_level={4 * tried}" in tensorflow["xla_flags"]
    assert ("nondeterministic" in tensorflow["xla_flags"]) is repeatable
