"""What networks need to be like their siblings in Keras."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.layers import NEVER

# PyTorch's own are exact; here they have the names of their siblings in keras.py.
gelu, layer_norm, embedding = functional.gelu, nn.LayerNorm, nn.Embedding


class Scale(nn.Module):  # type: ignore[misc]
    """A factor for every channel, the last axis."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class PositionEmbedding(nn.Module):  # type: ignore[misc]
    """A vector for every position, added to (n, length, width); length is at most `rows`."""

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


scale, position_embedding, attention = Scale, PositionEmbedding, Attention


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    *,
    seen: Tensor | None = None,
    drop: Callable[[Tensor], Tensor] = lambda scores: scores,
) -> Tensor:
    """What each position takes from those that are seen, (n, length, width).

    seen: None for all, or a mask (n · heads, 1 or length, length).
    """

    def split(x: Tensor) -> Tensor:
        """(n · heads, length, size of a head)"""
        return x.unflatten(2, (heads, -1)).transpose(1, 2).flatten(0, 1)

    scores = split(query) @ split(key).transpose(1, 2) * (1 / sqrt(query.shape[2] // heads))
    if seen is not None:
        scores = scores.masked_fill(~seen, NEVER)
    taken = drop(scores.softmax(2)) @ split(value)
    return taken.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)


class OneBiasLSTM(nn.LSTM):  # type: ignore[misc]
    """nn.LSTM with one bias vector per gate: with two trained, the bias would move twice as far as in Keras."""

    def __init__(self, inputs: int, size: int, *, bidirectional: bool = False) -> None:
        super().__init__(inputs, size, batch_first=True, bidirectional=bidirectional)
        for direction in ("", "_reverse") if bidirectional else ("",):
            name, zeros = f"bias_hh_l0{direction}", torch.zeros(4 * size)
            delattr(self, name)
            self.register_buffer(name, zeros, persistent=False)
            setattr(
                self, name, zeros
            )  # assigning, too, puts it among the flat weights that the kernel reads


class OneBiasCell(nn.LSTMCell):  # type: ignore[misc]
    """nn.LSTMCell with one bias vector per gate, for the same reason."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__(inputs, size)
        del self.bias_hh
        self.register_buffer("bias_hh", torch.zeros(4 * size), persistent=False)


def of_images(network: nn.Module) -> nn.Module:
    """torchvision's network, made to take images as the contract has them, (n, height, width, channels), without a copy."""
    network.register_forward_pre_hook(_channels_first)
    return network


def _channels_first(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0].permute(0, 3, 1, 2),)
