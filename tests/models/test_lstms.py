"""Implementations of an LSTM against plain loops in NumPy and their finite differences."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import parity
from models.contract import Array, Weights
from models.lstms import FLOAT32_ALONE
from models.parity import ParityRequest, Side
from tests.models import plain
from tests.models.children import result_of

LENGTHS, INPUTS, WIDTH = np.array([5, 2, 4]), 4, 3
CASE = """
import numpy as np
case = np.load({path!r})
weights = {{name: case[name] for name in case if name.startswith("x.")}}
result = {{}}
"""
PYTORCH = """
import torch
from models.errors import ErrorCode, ModelError
from models.lstms.pytorch import RUNS, lstm
try:
    lstm("block-v2", 4, 3)
    raise AssertionError("PyTorch has no block-v2")
except ModelError as error:
    assert error.code is ErrorCode.UNSUPPORTED
torch.set_default_dtype(torch.float64)
for name in ("layer", *RUNS):
    layer = lstm(name, 4, 3, bidirectional=True)
    layer.load_state_dict({key[2:]: torch.tensor(array) for key, array in weights.items()})
    steps = layer(torch.tensor(case["steps"]), torch.tensor(case["lengths"]))
    (steps * torch.tensor(case["slopes"])).sum().backward()
    slopes = {f"x.{key}": weight.grad.tolist() for key, weight in layer.named_parameters()}
    result[name] = [steps.tolist(), slopes]
"""
TENSORFLOW = """
import keras
import tensorflow as tf
from keras import layers, ops
from models.lstms import FLOAT32_ALONE
from models.lstms.keras import outputs
from models.transfer import entries, from_keras, to_keras
for name in ("layer", "cells", "scan", "block"):
    kind = "float32" if name in FLOAT32_ALONE else "float64"
    keras.config.set_dtype_policy(kind)
    layer = layers.Bidirectional(layers.LSTM(3, return_sequences=True), "concat", name="x")
    layer.build((None, None, 4))
    to_keras(entries(layer), weights)
    inside = np.arange(5) < case["lengths"][:, None]

    @tf.function
    def run():  # called before the next is made
        with tf.GradientTape() as tape:
            steps = outputs(name, layer, tf.constant(case["steps"], kind), tf.constant(inside))
            total = tf.reduce_sum(steps * tf.constant(case["slopes"], kind))
        return steps, tape.gradient(total, layer.trainable_variables)

    steps, gradients = run()
    variables = map(id, layer.trainable_variables)
    by_variable = dict(zip(variables, gradients))
    slopes = from_keras(entries(layer), lambda variable: by_variable[id(variable)])
    slopes = {key: slope.tolist() for key, slope in slopes.items()}
    result[name] = [steps.numpy().tolist(), slopes]
"""
SCRIPTS = {"pytorch": PYTORCH, "tensorflow": TENSORFLOW}


@cache
def drawn() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    sizes = {
        "weight_ih": (4 * WIDTH, INPUTS),
        "weight_hh": (4 * WIDTH, WIDTH),
        "bias_ih": (4 * WIDTH,),
    }
    ways = ("_l0", "_l0_reverse")
    weights = {
        f"x.{name}{way}": rng.standard_normal(size) for name, size in sizes.items() for way in ways
    }
    shape = (len(LENGTHS), LENGTHS.max())
    more = {
        "steps": rng.standard_normal((*shape, INPUTS)),
        "slopes": rng.standard_normal((*shape, 2 * WIDTH)),
    }
    return {**weights, **more, "lengths": LENGTHS}


def looped(weights: Weights) -> Array:
    """Return (n, T, both ways), zeros behind the end of a row."""
    results = np.zeros_like(drawn()["slopes"])
    for row, length in enumerate(LENGTHS):
        steps = drawn()["steps"][row, :length]
        results[row, :length] = np.hstack(
            [plain.lstm(weights, "x", steps, way) for way in ("", "_reverse")]
        )
    return results


@cache
def slopes() -> Weights:
    """Return central differences of 1e-5 in float64: exact to about 1e-9."""
    weights = {name: array.copy() for name, array in drawn().items() if name.startswith("x.")}
    results = {}
    for name, array in weights.items():
        results[name] = np.zeros_like(array)
        for at in np.ndindex(array.shape):
            stored, totals = array[at], []
            for step in (1e-5, -1e-5):
                array[at] = stored + step
                totals.append((looped(weights) * drawn()["slopes"]).sum())
            array[at] = stored
            results[name][at] = (totals[0] - totals[1]) / 2e-5
    return results


def distance(values: Any, expected: Array) -> float:
    return float(np.linalg.norm(np.array(values) - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("framework", SCRIPTS)
def test_implementations_equal_the_plain_loop_in_outputs_and_slopes(
    framework: str, tmp_path: Path
) -> None:
    """Compare to 1e-12 in float64, 1e-8 with differences, 1e-5 in float32 (rounding 6e-8)."""
    np.savez(tmp_path / "case.npz", **drawn())
    script = CASE.format(path=str(tmp_path / "case.npz")) + SCRIPTS[framework]
    results = result_of(framework, script)
    assert len(results) == 4
    expected = looped(drawn())
    for name, (steps, gradients) in results.items():
        is_single = framework == "tensorflow" and name in FLOAT32_ALONE
        assert distance(steps, expected) < (1e-5 if is_single else 1e-12), name
        for weight, slope in slopes().items():
            limit = 1e-5 if is_single else 1e-8
            assert distance(gradients[weight], slope) < limit, (name, weight)


WRONG_SLOPES = {
    ("tensorflow, lstm=block-v2, float32", quantity)
    for quantity in ("gradient", "step", "statistics")
}


@pytest.mark.slow
def test_gate_refuses_wrong_slopes_only() -> None:
    sides = [Side("pytorch", (("lstm", "cells"),)), Side("tensorflow", (("lstm", "scan"),))]
    blocks = [Side("tensorflow", (("lstm", name),), "float32") for name in ("block", "block-v2")]
    rows = parity.gate([ParityRequest("deepspeech2")], [*sides, *blocks])
    assert {(row.framework, row.quantity) for row in rows if not row.equal} == WRONG_SLOPES
    assert {row.framework for row in rows} == {
        "tensorflow, lstm=scan",
        *(f"tensorflow, lstm={name}, float32" for name in FLOAT32_ALONE),
    }
