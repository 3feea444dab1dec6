"""LSTMs over padded sequences in PyTorch, in several implementations; keras.py is its twin."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from models.contract import ModelError
from models.layers.pytorch import OneBiasLSTM

# (steps (n, T, inputs), weight_ih, weight_hh, bias_ih, bias_hh) -> (n, T, width)
Run = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def lstm(
    implementation: str,
    inputs: int,
    width: int,
    *,
    bidirectional: bool = False,
    packed: bool = False,
) -> nn.Module:
    """forward(steps (n, T, inputs), lengths (n,) or None) -> (n, T, width or twice), zeros behind the lengths.

    Its weights are those of `OneBiasLSTM`, whatever the implementation. packed: whether it is called with lengths, which
    PyTorch's own layer needs on the host. Raises ModelError for one that PyTorch lacks.
    """
    if implementation == "layer":
        layer = Layer(inputs, width, bidirectional=bidirectional)
        layer.waits_for_lengths = packed
        return layer
    if implementation not in RUNS:
        raise ModelError(
            f"lstm {implementation!r}: PyTorch has none; have layer, {', '.join(RUNS)}"
        )
    return Loop(RUNS[implementation], inputs, width, bidirectional=bidirectional)


class Layer(OneBiasLSTM):
    """PyTorch's own layer; sequences of several lengths are packed."""

    waits_for_lengths: bool

    def forward(self, steps: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None:
            return super().forward(steps)[0]
        packed = pack_padded_sequence(steps, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(
            super().forward(packed)[0], batch_first=True, total_length=steps.shape[1]
        )[0]


class Loop(nn.Module):  # type: ignore[misc]
    """A loop of Python over the steps. No nn.LSTM, whose code torch.compile leaves alone."""

    def __init__(self, run: Run, inputs: int, width: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.run = run
        self.directions = ("", "_reverse") if bidirectional else ("",)
        sizes = ((4 * width, inputs), (4 * width, width), (4 * width,))
        for direction in self.directions:
            for name, size in zip(WEIGHTS, sizes, strict=False):
                self.register_parameter(f"{name}{direction}", nn.Parameter(torch.zeros(size)))
            self.register_buffer(
                f"{WEIGHTS[3]}{direction}", torch.zeros(4 * width), persistent=False
            )

    def forward(self, steps: Tensor, lengths: Tensor | None = None) -> Tensor:
        outputs = self._one_way(steps, "")
        if len(self.directions) > 1:
            order = _backwards(steps, lengths)
            back = self._one_way(_taken(steps, order), "_reverse")
            outputs = torch.cat([outputs, _taken(back, order)], dim=2)
        if lengths is None:
            return outputs
        there = torch.arange(steps.shape[1], device=steps.device) < lengths[:, None]
        return outputs * there.to(outputs.dtype).unsqueeze(2)

    def _one_way(self, steps: Tensor, direction: str) -> Tensor:
        return self.run(steps, *(getattr(self, f"{name}{direction}") for name in WEIGHTS))


def _cells(steps: Tensor, into: Tensor, again: Tensor, bias: Tensor, _: Tensor) -> Tensor:
    h = c = steps.new_zeros(len(steps), again.shape[1])
    found = []
    for now in steps.unbind(1):
        h, c = _gated(functional.linear(now, into, bias) + functional.linear(h, again), c)
        found.append(h)
    return torch.stack(found, dim=1)


def _scan(steps: Tensor, into: Tensor, again: Tensor, bias: Tensor, _: Tensor) -> Tensor:
    h = c = steps.new_zeros(len(steps), again.shape[1])
    found = []
    for now in functional.linear(steps, into, bias).unbind(1):
        h, c = _gated(now + functional.linear(h, again), c)
        found.append(h)
    return torch.stack(found, dim=1)


def _block(steps: Tensor, into: Tensor, again: Tensor, bias: Tensor, zeros: Tensor) -> Tensor:
    """The operator that nn.LSTMCell calls."""
    h = c = steps.new_zeros(len(steps), again.shape[1])
    found = []
    for now in steps.unbind(1):
        h, c = torch.lstm_cell(now, (h, c), into, again, bias, zeros)
        found.append(h)
    return torch.stack(found, dim=1)


RUNS: dict[str, Run] = {"cells": _cells, "scan": _scan, "block": _block}


def _gated(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The next (h, c)."""
    i, f, g, o = gates.chunk(4, dim=1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _backwards(steps: Tensor, lengths: Tensor | None) -> Tensor:
    """(n, T): of every row its steps from its last to its first, then what is padding; taken twice, all are as they were."""
    at = torch.arange(steps.shape[1], device=steps.device).expand(steps.shape[:2])
    ends = at.shape[1] if lengths is None else lengths[:, None]
    return torch.where(at < ends, ends - 1 - at, at)


def _taken(steps: Tensor, order: Tensor) -> Tensor:
    return steps.gather(1, order.long().unsqueeze(2).expand(steps.shape))
