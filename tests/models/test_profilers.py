"""Profiles of steps whose operators are known; and graphs that are broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest

from models.frameworks import missing
from models.frameworks.spans import Event
from models.frameworks.xplane import FUSED, STEP, to_profile
from tests.models.children import result_of

STEPS, SLEEP, TURNS = 3, 0.02, 50
# Three marked steps, and one that is not. `sleep`: Python that computes nothing.
WORK = f"""
import functools, tempfile, time
from pathlib import Path
from experiments.cell.profile import parts
STEPS, SLEEP, LOOPS = {STEPS}, {SLEEP}, {TURNS}

def work(mark):
    step()
    for _ in range(STEPS):
        with mark():
            step()
            time.sleep(SLEEP)

def summary(profiled):
    profile = profiled(Path(tempfile.mkdtemp()), "cpu", work)
    kinds = {{kind: len(spans) for kind, spans in profile.operators.items()}}
    wall = sum(end - start for start, end in profile.steps)
    figures = {{"copies": len(profile.copies), "steps": len(profile.steps), "wall": wall}}
    counts = {{"counts": dict(profile.counts), "uncounted": dict(profile.uncounted)}}
    return {{"kinds": kinds, "parts": parts(profile), **figures, **counts}}
"""
# A product, a sum and a tanh, five times; then a copy, a sum, and its value.
TORCH = """
import torch
from models.frameworks.pytorch.profiler import profiled
weights, copied = torch.randn(8, 8), torch.zeros(8, 8)

def compute(x):
    for _ in range(5):
        x = torch.tanh(x @ weights + weights)
    return x

def step():
    x = compute(weights)
    copied.copy_(x)
    float(x.sum())

result = summary(profiled)
"""
# A product, a sum and a tanh, five times; then a loop of a comparison, a product, a tanh and a
# count; then a sum.
TENSORFLOW = """
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

for _ in range(BEFORE):  # without a profiler
    step()
again = functools.partial(profiled, forget=made.clear) if FORGET else profiled
result = summary(again)
"""
# A program of a product, a sum and a tanh, which XLA may fuse, five times.
JAX = """
import jax
from models.frameworks.jax.profiler import profiled
weights = jax.random.normal(jax.random.key(0), (256, 256))
layer = jax.jit(lambda x: jax.numpy.tanh(x @ weights + 1.0))

def step():
    x = weights
    for _ in range(5):
        x = layer(x)
    float(x[0, 0])

step()
result = summary(profiled)
"""


def check_parts(profile: dict[str, Any], *, recorded: bool = True) -> None:
    """Check that the parts add up to the steps, and that Python's sleep is in no other part.

    recorded: whether the runtime is sure to show an operator.
    """
    assert profile["steps"] == STEPS
    assert sum(profile["parts"].values()) == pytest.approx(profile["wall"])
    assert profile["parts"]["op"] > 0 or not recorded
    # threads of the runtime may end after the step's value is known
    assert profile["parts"]["python"] > (STEPS - 0.5) * SLEEP


def test_pytorchs_leaves_are_the_operators_that_were_called() -> None:
    profile = result_of("pytorch", WORK + TORCH)
    check_parts(profile)
    called = {"mm": 5, "add": 5, "tanh": 5, "fill_": 1, "_local_scalar_dense": 1}
    assert profile["kinds"] == {f"aten::{kind}": STEPS * count for kind, count in called.items()}
    assert profile["copies"] == STEPS
    assert profile["counts"] == {"ops": STEPS * 18}
    assert not profile["uncounted"]


def on_tensorflow(mode: str, before: int = 1, *, forget: bool = False) -> dict[str, Any]:
    head = f"MODE, BEFORE, FORGET = {mode!r}, {before}, {forget}"
    return dict(result_of("tensorflow", f"{WORK}\n{head}\n{TENSORFLOW}"))


def test_tensorflows_quick_operators_are_counted() -> None:
    """The loop's condition runs once more than its body, and TensorFlow counts the turns."""
    # after a hundred steps of fifty turns the runtime shows hardly any operator
    profile = on_tensorflow("graph", 100, forget=True)
    check_parts(profile, recorded=False)
    assert profile["counts"] == {"ops": STEPS * (5 * 3 + (TURNS + 1) + 4 * TURNS + 1)}
    assert sum(profile["kinds"].values()) < profile["counts"]["ops"]
    assert profile["parts"]["unrecorded"] > 0


def test_graph_that_cannot_be_traced_afresh_is_not_counted() -> None:
    profile = on_tensorflow("graph")
    check_parts(profile)
    assert profile["counts"] == {}
    assert "leaves out" in profile["uncounted"]["ops"]


def test_eager_operators_are_counted_one_by_one() -> None:
    profile = on_tensorflow("eager")
    check_parts(profile)
    loop = {"AddV2": 5 + TURNS, "Tanh": 5 + TURNS, "Mul": TURNS, "Less": TURNS + 1}
    kinds = {"MatMul": 5, "Sum": 1, **loop}
    assert profile["kinds"] == {kind: STEPS * count for kind, count in kinds.items()}
    assert profile["counts"] == {"ops": STEPS * sum(kinds.values())}
    assert profile["parts"]["unrecorded"] == 0


def check_kernels_of_xla(profile: dict[str, Any]) -> None:
    """Check that there is at least one for each product; XLA may fuse the whole loop."""
    check_parts(profile)
    assert profile["uncounted"] == {"ops": FUSED}
    assert profile["counts"].keys() == {"launches"}
    assert profile["counts"]["launches"] >= STEPS * 5
    assert not any(kind.startswith(("while", "end: ")) for kind in profile["kinds"])


def test_kernels_of_xla_are_counted() -> None:
    check_kernels_of_xla(on_tensorflow("xla"))


@pytest.mark.parametrize("framework", ["keras-jax", "jax"])
def test_jax_shows_the_kernels_of_xla(framework: str) -> None:
    if reason := missing(framework):
        pytest.skip(reason)
    profile = result_of(framework, WORK + JAX)
    check_kernels_of_xla(profile)
    assert profile["counts"]["launches"] % STEPS == 0
    assert profile["parts"]["dispatch"] > 0


@pytest.mark.parametrize("by_xla", [False, True])
def test_kernels_of_a_gpu_are_those_of_its_streams(by_xla: bool) -> None:
    """Two kernels and a copy in a step, one kernel before it, and a line that sums up the same.

    XLA's kernels are not operators: the number of operators in each is not known.
    """
    host, gpu, stream = "/host:CPU", "/device:GPU:0", "Stream #13(Compute)"
    events = [
        Event(STEP, 1.0, 2.0, 0, host, "python"),
        Event("ExecutorState::Process", 1.0, 1.1, 1, host, "python"),
        Event("fusion.1", 0.5, 0.6, 13, gpu, stream, by_xla),
        Event("fusion.1", 1.1, 1.3, 13, gpu, stream, by_xla),
        Event("fusion.2", 1.3, 1.4, 13, gpu, stream, by_xla),
        Event("MemcpyD2H", 1.4, 1.5, 14, gpu, "Stream #14(MemcpyD2H)"),
        Event("fusion.1", 1.1, 1.3, 99, gpu, "XLA Ops", by_xla),
    ]
    profile = to_profile(events, "cuda", count=lambda: 7)
    assert {kind: len(spans) for kind, spans in profile.operators.items()} == {"fusion": 2}
    assert profile.copies == [(1.4, 1.5)]
    assert profile.counts == ({"launches": 2} if by_xla else {"launches": 2, "ops": 7})
    assert profile.uncounted == ({"ops": FUSED} if by_xla else {})


# A network whose pass is broken by a value that Python needs.
BROKEN = """
import functools, torch
import numpy as np
import models
from models.contract import Batch, OptimizerConfig
from models.frameworks import open_framework
from tests.models.framework_checks import Clock
# Dynamo finds the graphs for any backend
torch.compile = functools.partial(torch.compile, backend="eager")
name = "pytorch+compile"
framework = open_framework(name, device="cpu", threads=1, precision="float32", seed=0)
network = framework.build("lenet", models.spec("lenet").Spec())

class Reading(type(network)):
    def forward(self, x):
        x = super().forward(x)
        return x * 2 if x.sum().item() > 0 else x

network.__class__ = {"": type(network), "item": Reading}[KIND]
optimizer = framework.optimizer(network, OptimizerConfig("adam", 1e-3))
images, classes = np.zeros((4, 28, 28, 1), np.float32), np.zeros(4, np.int32)
batch = Batch((images,), classes, np.ones(4, np.float32))
framework.train_epoch(network, optimizer, [batch] * 3, Clock())
result = [framework.compilations(), framework.graph_breaks()]
"""


@pytest.mark.parametrize("kind", ["", "item"])
def test_graph_breaks_are_counted_by_reason(kind: str) -> None:
    if reason := missing("pytorch+compile"):
        pytest.skip(reason)
    graphs, breaks = result_of("pytorch+compile", f"KIND = {kind!r}\n{BROKEN}")
    assert graphs > 0
    assert bool(breaks) == bool(kind)
    assert kind in " ".join(breaks).lower()
    assert all(count > 0 for count in breaks.values())
