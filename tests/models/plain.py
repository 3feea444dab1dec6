"""Layers written down once more in NumPy, loop by loop: what networks are compared with that share no code with them."""

from __future__ import annotations

import numpy as np

from models.contract import Array, Weights


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm(weights: Weights, path: str, x: Array, direction: str = "") -> Array:
    """One sequence (words, inputs) -> (words, width); `_reverse` reads it from its end."""
    state, found = (np.zeros(weights[f"{path}.weight_hh_l0"].shape[1]),) * 2, []
    for word in x[::-1] if direction else x:
        state = cell(weights, path, word, state, f"_l0{direction}")
        found.append(state[0])
    return np.array(found[::-1] if direction else found)


def cell(
    weights: Weights, path: str, x: Array, state: tuple[Array, Array], suffix: str = ""
) -> tuple[Array, Array]:
    """One step of an LSTM: the state (h, c) and the next."""
    into, again, bias = (
        weights[f"{path}.{name}{suffix}"] for name in ("weight_ih", "weight_hh", "bias_ih")
    )
    i, f, g, o = np.split(into @ x + again @ state[0] + bias, 4)
    c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def convolution(kernel: Array, x: Array, strides: tuple[int, int]) -> Array:
    """(inputs, rows, columns) -> (outputs, rows, columns), half the kernel's size in zeros on every side."""
    height, width = kernel.shape[2:]
    x = np.pad(x, ((0, 0), (height // 2, height // 2), (width // 2, width // 2)))
    rows, columns = (x.shape[1] - height) // strides[0] + 1, (x.shape[2] - width) // strides[1] + 1
    found = np.zeros((len(kernel), rows, columns))
    for row in range(rows):
        for column in range(columns):
            top, left = row * strides[0], column * strides[1]
            found[:, row, column] = np.tensordot(
                kernel, x[:, top : top + height, left : left + width], 3
            )
    return found


def norm(weights: Weights, path: str, x: Array) -> Array:
    """By running statistics; channels last."""
    gain, shift, mean, variance = (
        weights[f"{path}.{name}"] for name in ("weight", "bias", "running_mean", "running_var")
    )
    return (x - mean) / np.sqrt(variance + 1e-5) * gain + shift


FORWARD = """
import sys
import numpy as np
from models import parity, spec
from models.frameworks import open_framework
name, framework, out = sys.argv[1:]
module, rng = spec(name), np.random.default_rng(3)
small, batch = module.probe(rng)
weights = parity._perturbed(module.initial_weights(small, rng), rng)
adapter = open_framework(framework, device="cpu", threads=1, precision="float64", seed=0)
network = adapter.build(name, small)
adapter.load_weights(network, weights)
loss, total = adapter.evaluate(network, batch)
np.savez(out, outputs=adapter.infer(network, batch.inputs), targets=batch.targets, loss=loss / total, row_weights=batch.weights,
         **{f"weights/{k}": v for k, v in weights.items()}, **{f"inputs/{at}": one for at, one in enumerate(batch.inputs)})
"""
