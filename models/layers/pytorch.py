"""Layers of PyTorch that are like their siblings in Keras."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.layers import NEVER

gelu = functional.gelu  # exact, as that of keras.py


class Scale(nn.Module):  # type: ignore[misc]
    """Factor for each channel, the last axis."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class PositionEmbedding(nn.Module):  # type: ignore[misc]
    """Vector for each position, added to (n, length, width); length is at most `rows`."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight[: x.shape[1]]


class Attention(nn.Module):  # type: ignore[misc]
    """Self-attention of (n, length, width)."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.output = nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        return self.output(attend(query, key, value, self.heads, drop=self.dropout))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    *,
    seen: Tensor | None = None,
    drop: Callable[[Tensor], Tensor] = lambda scores: scores,
) -> Tensor:
    """Return what each position takes from the visible ones, (n, length, width).

    Args:
        query: Of each position, (n, length, width).
        key: Of each position, (n, length, width).
        value: Of each position, (n, length, width).
        heads: Number of heads.
        seen: Mask of the visible ones (n · heads, 1 or length, length), None for all.
        drop: Dropout of the attention's shares.
    """

    def split(x: Tensor) -> Tensor:
        return x.unflatten(2, (heads, -1)).transpose(1, 2).flatten(0, 1)

    scores = split(query) @ split(key).transpose(1, 2) * (1 / sqrt(query.shape[2] // heads))
    if seen is not None:
        scores = scores.masked_fill(~seen, NEVER)
    taken = drop(scores.softmax(2)) @ split(value)
    return taken.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)


def mask(lengths: Tensor, longest: int) -> Tensor:
    """Return which positions lie inside the lengths.

    Args:
        lengths: Of the rows, (n,).
        longest: Positions of a row.

    Returns:
        bool (n, longest).
    """
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


class OneBiasLSTM(nn.LSTM):  # type: ignore[misc]
    """nn.LSTM with one bias a gate: with two trained, it would move twice as far as in Keras."""

    def __init__(self, inputs: int, size: int, *, bidirectional: bool = False) -> None:
        super().__init__(inputs, size, batch_first=True, bidirectional=bidirectional)
        for direction in ("", "_reverse") if bidirectional else ("",):
            name, zeros = f"bias_hh_l0{direction}", torch.zeros(4 * size)
            delattr(self, name)
            self.register_buffer(name, zeros, persistent=False)
            setattr(self, name, zeros)  # puts it among the flat weights that the kernel reads


class OneBiasCell(nn.LSTMCell):  # type: ignore[misc]
    """nn.LSTMCell with one bias a gate, for the same reason."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__(inputs, size)
        del self.bias_hh
        self.register_buffer("bias_hh", torch.zeros(4 * size), persistent=False)


def of_images(network: nn.Module) -> nn.Module:
    """Make a network take images as the contract has them, (n, height, width, channels)."""

    def permute(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (inputs[0].permute(0, 3, 1, 2),)

    network.register_forward_pre_hook(permute)
    return network
