"""Layers and BERT in NumPy, loop by loop; they share no code with the networks."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np
from scipy.special import erf

from models.bert.spec import Spec
from models.contract import Array, Batch, Weights


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm(weights: Weights, path: str, x: Array, direction: str = "") -> Array:
    """Return (words, width) of a sequence (words, inputs); `_reverse` reads it from its end."""
    state, states = (np.zeros(weights[f"{path}.weight_hh_l0"].shape[1]),) * 2, []
    for word in x[::-1] if direction else x:
        state = cell(weights, path, word, state, f"_l0{direction}")
        states.append(state[0])
    return np.array(states[::-1] if direction else states)


def cell(
    weights: Weights, path: str, x: Array, state: tuple[Array, Array], suffix: str = ""
) -> tuple[Array, Array]:
    """Return the state (h, c) of an LSTM after the next step."""
    into, again, bias = (
        weights[f"{path}.{name}{suffix}"] for name in ("weight_ih", "weight_hh", "bias_ih")
    )
    i, f, g, o = np.split(into @ x + again @ state[0] + bias, 4)
    c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def convolution(kernel: Array, x: Array, strides: tuple[int, int]) -> Array:
    """Return (outputs, rows, columns) of (inputs, rows, columns), padded by half the kernel."""
    height, width = kernel.shape[2:]
    x = np.pad(x, ((0, 0), (height // 2, height // 2), (width // 2, width // 2)))
    rows, columns = (x.shape[1] - height) // strides[0] + 1, (x.shape[2] - width) // strides[1] + 1
    outputs = np.zeros((len(kernel), rows, columns))
    for row in range(rows):
        for column in range(columns):
            top, left = row * strides[0], column * strides[1]
            outputs[:, row, column] = np.tensordot(
                kernel, x[:, top : top + height, left : left + width], 3
            )
    return outputs


def norm(weights: Weights, path: str, x: Array) -> Array:
    """Normalise by running statistics; channels last."""
    gain, shift, mean, variance = (
        weights[f"{path}.{name}"] for name in ("weight", "bias", "running_mean", "running_var")
    )
    return (x - mean) / np.sqrt(variance + 1e-5) * gain + shift


class Bert:
    """Formulas of the paper, row by row; `received` holds the inputs of dropouts."""

    def __init__(self, spec: Spec, weights: Mapping[str, Array]) -> None:
        self.spec, self.weights, self.received = spec, weights, dict[str, list[Array]]()

    def logits(self, batch: Batch) -> Array:
        return np.array([self.row(*item) for item in zip(*batch.inputs, strict=True)])

    def row(self, tokens: Array, length: int, types: Array) -> Array:
        word, position, kind = (
            self.weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        x = np.array(
            [word[token] + position[at] + kind[types[at]] for at, token in enumerate(tokens)]
        )
        x = self.seen("embeddings.dropout", self.norm("embeddings.LayerNorm", x))
        for index in range(self.spec.layers):
            x = self.layer(f"encoder.layer.{index}", x, length)
        pooled = self.seen("dropout", np.tanh(self.linear("pooler.dense", x[0])))
        return self.linear("classifier", pooled)

    def layer(self, path: str, x: Array, length: int) -> Array:
        query, key, value = (
            self.linear(f"{path}.attention.self.{name}", x) for name in ("query", "key", "value")
        )
        size = self.spec.width // self.spec.heads
        mixed = []
        for head in range(self.spec.heads):
            mine = slice(head * size, (head + 1) * size)
            scores = np.exp(query[:, mine] @ key[:length, mine].T / sqrt(size))
            likely = np.zeros((len(x), len(x)))
            likely[:, :length] = scores / scores.sum(1, keepdims=True)
            mixed.append(self.seen(f"{path}.attention.self.dropout", likely) @ value[:, mine])
        x = self.end(f"{path}.attention.output", np.concatenate(mixed, 1), x)
        between = self.linear(f"{path}.intermediate.dense", x)
        return self.end(f"{path}.output", between * (1 + erf(between / sqrt(2))) / 2, x)

    def end(self, path: str, x: Array, before: Array) -> Array:
        return self.norm(
            f"{path}.LayerNorm",
            self.seen(f"{path}.dropout", self.linear(f"{path}.dense", x)) + before,
        )

    def linear(self, path: str, x: Array) -> Array:
        return x @ self.weights[f"{path}.weight"].T + self.weights[f"{path}.bias"]

    def norm(self, path: str, x: Array) -> Array:
        centred = x - x.mean(1, keepdims=True)
        whitened = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-12)
        return whitened * self.weights[f"{path}.weight"] + self.weights[f"{path}.bias"]

    def seen(self, path: str, x: Array) -> Array:
        self.received.setdefault(path, []).append(x)
        return x

    def loss(self, batch: Batch) -> float:
        logits = self.logits(batch)
        losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(logits)), batch.targets]
        return float((losses * batch.weights).sum() / batch.weights.sum())
