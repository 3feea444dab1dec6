"""Implementations of an LSTM against plain loops in NumPy and their finite differences."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from models import parity
from models.contract import Array, Weights
from models.lstms import FLOAT32_ALONE
from models.parity import ParityRequest, Side
from tests.models import plain
from tests.models.children import run_in

LENGTHS, INPUTS, WIDTH = np.array([5, 2, 4]), 4, 3
PYTORCH = """
import sys
import numpy as np
import torch
from models.lstms.pytorch import lstm
from models.errors import ModelError
given, out = np.load(sys.argv[1]), {}
try:
    lstm("block-v2", 4, 3)
    raise AssertionError("PyTorch has no block-v2")
except ModelError as error:
    assert "have layer, cells, scan, block" in str(error)
torch.set_default_dtype(torch.float64)
for name in sys.argv[3:]:
    layer = lstm(name, 4, 3, bidirectional=True)
    layer.load_state_dict({key[2:]: torch.tensor(given[key]) for key in given if key.startswith("x.")})
    steps = layer(torch.tensor(given["steps"]), torch.tensor(given["lengths"]))
    (steps * torch.tensor(given["slopes"])).sum().backward()
    out[name] = steps.detach().numpy()
    out |= {f"{name}/x.{key}": weight.grad.numpy() for key, weight in layer.named_parameters()}
np.savez(sys.argv[2], **out)
"""
TENSORFLOW = """
import sys
import numpy as np
import keras
import tensorflow as tf
from keras import layers, ops
from models.lstms import FLOAT32_ALONE
from models.lstms.keras import outputs
from models.transfer import entries, from_keras, to_keras
given, out = np.load(sys.argv[1]), {}
for name in sys.argv[3:]:
    kind = "float32" if name in FLOAT32_ALONE else "float64"
    keras.config.set_dtype_policy(kind)
    layer = layers.Bidirectional(layers.LSTM(3, return_sequences=True), "concat", name="x")
    layer.build((None, None, 4))
    to_keras(entries(layer), {key: given[key] for key in given if key.startswith("x.")})
    inside = np.arange(5) < given["lengths"][:, None]

    @tf.function
    def run():  # called before the next is made
        with tf.GradientTape() as tape:
            found = outputs(name, layer, tf.constant(given["steps"], kind), tf.constant(inside))
            total = tf.reduce_sum(found * tf.constant(given["slopes"], kind))
        return found, tape.gradient(total, layer.trainable_variables)

    found, slopes = run()
    by_variable = {id(variable): slope for variable, slope in zip(layer.trainable_variables, slopes)}
    out[name] = found.numpy()
    out |= {f"{name}/{key}": slope for key, slope in from_keras(entries(layer), lambda one: by_variable[id(one)]).items()}
np.savez(sys.argv[2], **out)
"""
SCRIPTS = {
    "pytorch": (PYTORCH, ("layer", "cells", "scan", "block")),
    "tensorflow": (TENSORFLOW, ("layer", "cells", "scan", "block")),
}


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
    """(n, T, both ways), zeros behind the end of a row."""
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


def computed(framework: str, *names: str, folder: Path) -> dict[str, Array]:
    np.savez(folder / "given.npz", **drawn())
    run_in(
        framework,
        "-c",
        SCRIPTS[framework][0],
        str(folder / "given.npz"),
        str(folder / "found.npz"),
        *names,
    )
    with np.load(folder / "found.npz") as results:
        return dict(results)


def apart(a: Array, b: Array) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("framework", SCRIPTS)
def test_implementations_equal_the_plain_loop_in_outputs_and_slopes(
    framework: str, tmp_path: Path
) -> None:
    """Compare to 1e-12 in float64, 1e-8 with differences, 1e-5 in float32 (rounding 6e-8)."""
    names = SCRIPTS[framework][1]
    results, right = computed(framework, *names, folder=tmp_path), looped(drawn())
    for name in names:
        single = framework == "tensorflow" and name in FLOAT32_ALONE
        assert apart(results[name], right) < (1e-5 if single else 1e-12), name
        for weight, slope in slopes().items():
            assert apart(results[f"{name}/{weight}"], slope) < (1e-5 if single else 1e-8), (
                name,
                weight,
            )


WRONG_SLOPES = {
    ("tensorflow, lstm=block-v2, float32", quantity)
    for quantity in ("gradient", "step", "statistics")
}


@pytest.mark.slow
def test_gate_refuses_wrong_slopes_only() -> None:
    sides = [Side("pytorch", (("lstm", "cells"),)), Side("tensorflow", (("lstm", "scan"),))]
    blocks = [Side("tensorflow", (("lstm", name),), "float32") for name in ("block", "block-v2")]
    rows = parity.gate(ParityRequest("deepspeech2"), [*sides, *blocks])
    assert {(row.framework, row.quantity) for row in rows if not row.equal} == WRONG_SLOPES
    assert {row.framework for row in rows} == {
        "tensorflow, lstm=scan",
        *(f"tensorflow, lstm={name}, float32" for name in FLOAT32_ALONE),
    }
