"""What networks need to be like their siblings in Keras."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class OneBiasLSTM(nn.LSTM):  # type: ignore[misc]
    """nn.LSTM with one bias vector per gate: with two trained, the bias would move twice as far as in Keras."""

    def __init__(self, inputs: int, size: int, *, bidirectional: bool = False) -> None:
        super().__init__(inputs, size, batch_first=True, bidirectional=bidirectional)
        for direction in ("", "_reverse") if bidirectional else ("",):
            name, zeros = f"bias_hh_l0{direction}", torch.zeros(4 * size)
            delattr(self, name)
            self.register_buffer(name, zeros, persistent=False)
            setattr(self, name, zeros)  # assigning, too, puts it among the flat weights that the kernel reads


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
