"""What profilers show, against steps whose operators are known one by one; and graphs that are broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest

from models.frameworks import missing
from models.frameworks.spans import Event
from models.frameworks.xplane import FUSED, STEP, TraceEvent, read_trace, to_profile
from tests.models.children import answer

STEPS, SLEEP = 3, 0.02
# Three steps that are marked, and one that is not. `sleep`: Python that computes nothing.
WORK = (
    f"STEPS, SLEEP = {STEPS}, {SLEEP}"
    + """
import json, sys, tempfile, time
from pathlib import Path
from experiments.cell.profile import parts

def work(mark):
    step()
    for _ in range(STEPS):
        with mark():
            step()
            time.sleep(SLEEP)

def told(profiled):
    found = profiled(Path(tempfile.mkdtemp()), "cpu", work)
    counts = {kind: len(spans) for kind, spans in found.operators.items()}
    seconds = parts(found)
    print(json.dumps({"kinds": counts, "copies": len(found.copies), "parts": seconds, "steps": len(found.steps),
        "counts": dict(found.counts), "uncounted": dict(found.uncounted), "wall": sum(b - a for a, b in found.steps)}))
"""
)
# A product, a sum and a tanh, five times; then a copy, a sum, and its value.
TORCH = """
import torch
from models.frameworks.pytorch.profiler import profiled
weights, kept = torch.randn(8, 8), torch.zeros(8, 8)

def compute(x):
    for _ in range(5):
        x = torch.tanh(x @ weights + weights)
    return x

def step():
    x = compute(weights)
    kept.copy_(x)
    float(x.sum())
"""


def profile_of(framework: str, script: str, call: str = "told(profiled)") -> dict[str, Any]:
    found: dict[str, Any] = answer(framework, f"{WORK}\n{script}\n{call}")
    return found


def check_parts(found: dict[str, Any], *, recorded: bool = True) -> None:
    """Whatever else they are, they add up to the steps, and Python's sleep is in none of the others.

    But for a moment: threads of the runtime may end after the step's value is known.
    recorded: whether the runtime is sure to show an operator.
    """
    assert found["steps"] == STEPS
    assert sum(found["parts"].values()) == pytest.approx(found["wall"])
    assert found["parts"]["op"] > 0 or not recorded
    assert found["parts"]["python"] > (STEPS - 0.5) * SLEEP


def test_pytorchs_leaves_are_the_operators_that_were_called() -> None:
    found = profile_of("pytorch", TORCH)
    check_parts(found)
    called = {
        "aten::mm": 5,
        "aten::add": 5,
        "aten::tanh": 5,
        "aten::fill_": 1,
        "aten::_local_scalar_dense": 1,
    }
    assert found["kinds"] == {
        kind: STEPS * count for kind, count in called.items()
    }  # a sum fills its result first
    assert found["copies"] == STEPS
    assert found["counts"] == {"ops": STEPS * 18}
    assert not found["uncounted"]


@pytest.mark.slow
def test_what_torch_compile_fuses_is_not_counted() -> None:
    # one kernel: to compile the headers for others too takes as long as the kernel does
    alone = (
        "import torch._inductor.config as inductor\ninductor.cpp_cache_precompile_headers = False\n"
    )
    found = profile_of("pytorch+compile", TORCH + alone + "compute = torch.compile(compute)\n")
    check_parts(found)
    assert found["counts"] == {}
    assert "fuses" in found["uncounted"]["ops"]
    assert found["parts"]["unrecorded"] > 0


# A product, a sum and a tanh, five times; then a loop of a comparison, a product, a tanh and a count; then a sum.
TENSORFLOW = """
import functools
import tensorflow as tf
from models.frameworks.tensorflow.profiler import profiled
weights, made = tf.random.normal((8, 8)), {}

def compute(x):
    for _ in range(5):
        x = tf.tanh(x @ weights + 1.0)
    turn = lambda at, x: (at + 1, tf.tanh(x * 0.5))
    return tf.reduce_sum(tf.while_loop(lambda at, _: at < LOOPS, turn, (tf.constant(0), x))[1])

def step():
    if MODE != "eager" and not made:
        made[0] = tf.function(compute, jit_compile=MODE == "xla")
    float(made.get(0, compute)(weights))
"""
TURNS = 50


def tensorflows(mode: str, call: str = "told(profiled)", before: int = 1) -> dict[str, Any]:
    """before: steps without a profiler. After many the runtime shows hardly an operator, and sometimes none."""
    script = f"MODE, LOOPS = {mode!r}, {TURNS}\n{TENSORFLOW}\nfor _ in range({before}):\n    step()"
    found = profile_of("tensorflow", script, call)
    check_parts(found, recorded=before == 1)
    return found


def test_tensorflows_operators_are_counted_though_its_profiler_leaves_out_the_quick_ones() -> None:
    """After a hundred steps of fifty turns the runtime shows hardly any.

    The loop's condition is looked at once more than its body, and TensorFlow counts the turns besides.
    """
    found = tensorflows("graph", "told(functools.partial(profiled, forget=made.clear))", before=100)
    assert found["counts"] == {"ops": STEPS * (5 * 3 + (TURNS + 1) + 4 * TURNS + 1)}
    assert sum(found["kinds"].values()) < found["counts"]["ops"]
    assert found["parts"]["unrecorded"] > 0


def test_a_graph_that_cannot_be_traced_afresh_is_not_counted() -> None:
    found = tensorflows("graph")
    assert found["counts"] == {}
    assert "leaves out" in found["uncounted"]["ops"]


def test_eager_operators_are_counted_one_by_one() -> None:
    found = tensorflows("eager")
    kinds = {
        "MatMul": 5,
        "AddV2": 5 + TURNS,
        "Tanh": 5 + TURNS,
        "Mul": TURNS,
        "Less": TURNS + 1,
        "Sum": 1,
    }
    assert found["kinds"] == {kind: STEPS * count for kind, count in kinds.items()}
    assert found["counts"] == {"ops": STEPS * sum(kinds.values())}
    assert found["parts"]["unrecorded"] == 0


def test_what_xla_fuses_is_not_counted_but_its_kernels_are() -> None:
    """At least one for each product: XLA may make one kernel of the whole loop."""
    found = tensorflows("xla")
    assert "XLA" in found["uncounted"]["ops"]
    assert found["counts"].keys() == {"launches"}
    assert found["counts"]["launches"] >= STEPS * 5
    assert not any(kind.startswith(("while", "end: ")) for kind in found["kinds"])


# A program of a product, a sum and a tanh, which XLA may fuse, five times.
JAX = """
import jax
from models.frameworks.keras.profiler import profiled
weights = jax.random.normal(jax.random.key(0), (256, 256))
layer = jax.jit(lambda x: jax.numpy.tanh(x @ weights + 1.0))

def step():
    x = weights
    for _ in range(5):
        x = layer(x)
    float(x[0, 0])

step()
"""


def test_jax_shows_the_kernels_of_xla() -> None:
    if reason := missing("keras-jax"):
        pytest.skip(reason)
    found = profile_of("keras-jax", JAX)
    check_parts(found)
    assert found["uncounted"] == {"ops": FUSED}
    assert found["counts"].keys() == {"launches"}
    assert found["counts"]["launches"] >= STEPS * 5
    assert found["counts"]["launches"] % STEPS == 0
    assert not any(kind.startswith("end: ") for kind in found["kinds"])
    assert found["parts"]["dispatch"] > 0


@pytest.mark.parametrize("by_xla", [False, True])
def test_a_gpus_kernels_are_those_of_its_streams(by_xla: bool) -> None:
    """Two kernels and a copy in a step, one kernel before it; a line that sums up the same is not counted.

    XLA's kernels are not operators: how many operators each of them holds is not known.
    """
    host, gpu, stream = "/host:CPU", "/device:GPU:0", "Stream #13(Compute)"
    events = [
        TraceEvent(host, "python", False, Event(STEP, 1.0, 2.0, 0)),
        TraceEvent(host, "python", False, Event("ExecutorState::Process", 1.0, 1.1, 1)),
        TraceEvent(gpu, stream, by_xla, Event("fusion.1", 0.5, 0.6, 13)),
        TraceEvent(gpu, stream, by_xla, Event("fusion.1", 1.1, 1.3, 13)),
        TraceEvent(gpu, stream, by_xla, Event("fusion.2", 1.3, 1.4, 13)),
        TraceEvent(gpu, "Stream #14(MemcpyD2H)", False, Event("MemcpyD2H", 1.4, 1.5, 14)),
        TraceEvent(gpu, "XLA Ops", by_xla, Event("fusion.1", 1.1, 1.3, 99)),
    ]
    profile = to_profile(read_trace(events), "cuda", count=lambda: 7)
    assert {kind: len(spans) for kind, spans in profile.operators.items()} == {"fusion": 2}
    assert profile.copies == [(1.4, 1.5)]
    assert profile.counts == ({"launches": 2} if by_xla else {"launches": 2, "ops": 7})
    assert profile.uncounted == ({"ops": FUSED} if by_xla else {})


# A network of the zoo whose pass is broken: not at all, by an effect, by a value that Python asks for, inside of a loop.
BROKEN = """
import functools, json, sys, torch
import numpy as np
torch.compile = functools.partial(torch.compile, backend="eager")  # Dynamo finds the graphs, whoever compiles them
import models
from models.contract import Batch, OptimizerConfig
from models.frameworks import open_framework
from models.testing.framework_checks import Clock
framework = open_framework("pytorch+compile", device="cpu", threads=1, precision="float32", seed=0)
module = models.spec("lenet")
network = framework.build("lenet", module.Spec())

class Printing(type(network)):
    def forward(self, x):
        x = super().forward(x)
        print("seen")
        return x

class Asking(type(network)):
    def forward(self, x):
        x = super().forward(x)
        return x * 2 if x.sum().item() > 0 else x

class Looping(type(network)):
    def forward(self, x):
        for _ in range(2):
            print("seen")
        return super().forward(x)

network.__class__ = {"": type(network), "print": Printing, "item": Asking, "loop": Looping}[KIND]
optimizer = framework.optimizer(network, OptimizerConfig("adam", 1e-3))
batch = Batch((np.zeros((4, 28, 28, 1), np.float32),), np.zeros(4, np.int32), np.ones(4, np.float32))
framework.train_epoch(network, optimizer, [batch] * 3, Clock())
print(json.dumps([framework.compilations(), framework.graph_breaks()]))
"""


@pytest.mark.parametrize(
    "kind",
    ["", "print", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("item", "loop"))],
)
def test_graphs_that_python_breaks_are_counted_with_the_reason(kind: str) -> None:
    graphs, breaks = answer("pytorch+compile", f"KIND = {kind!r}\n{BROKEN}")
    assert graphs > 0
    assert bool(breaks) == bool(kind)
    if kind:
        assert all(count > 0 for count in breaks.values())
        assert {"print": "print", "item": "item", "loop": "print"}[kind] in " ".join(breaks).lower()
