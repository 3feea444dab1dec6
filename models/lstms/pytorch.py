"""LSTMs over padded sequences in PyTorch, in several implementations; keras.py is its twin."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from models.contract import ErrorCode, ModelError
from models.layers.pytorch import OneBiasLSTM, mask

# (steps (n, T, inputs), weight_ih, weight_hh, bias_ih, bias_hh) -> (n, T, width)
Run = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def lstm(
    implementation: str,
    inputs: int,
    width: int,
    *,
    bidirectional: bool = False,
) -> nn.Module:
    """Return forward(steps (n, T, inputs), lengths (n,) or None) -> (n, T, width or twice).

    Outputs are zero behind the lengths. Weights are those of `OneBiasLSTM`.

    Args:
        implementation: One of `models.lstms.IMPLEMENTATIONS`.
        inputs: Width of the inputs.
        width: Width of the state.
        bidirectional: Whether it runs both ways.

    Raises:
        ModelError: PyTorch lacks the implementation.
    """
    if implementation == "layer":
        return Layer(inputs, width, bidirectional=bidirectional)
    if implementation not in RUNS:
        have = ", ".join(RUNS)
        raise ModelError(
            ErrorCode.UNSUPPORTED, f"lstm {implementation!r}: PyTorch has none; have layer, {have}"
        )
    return Loop(RUNS[implementation], inputs, width, bidirectional=bidirectional)


class Layer(OneBiasLSTM):
    """PyTorch's own layer; sequences of several lengths are packed."""

    def forward(self, steps: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None or steps.is_meta:  # without values there are no lengths to pack by
            return super().forward(steps)[0]
        packed = pack_padded_sequence(steps, lengths.cpu(), batch_first=True, enforce_sorted=False)
        outputs, longest = super().forward(packed)[0], steps.shape[1]
        return pad_packed_sequence(outputs, batch_first=True, total_length=longest)[0]


class Loop(nn.Module):  # type: ignore[misc]
    """Loop of Python over the steps. No nn.LSTM, which torch.compile does not compile."""

    def __init__(self, run: Run, inputs: int, width: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.run = run
        self.directions = ("", "_reverse") if bidirectional else ("",)
        sizes = ((4 * width, inputs), (4 * width, width), (4 * width,))
        for direction in self.directions:
            for name, size in zip(WEIGHTS, sizes, strict=False):
                self.register_parameter(f"{name}{direction}", nn.Parameter(torch.zeros(size)))
            zeros = torch.zeros(4 * width)
            self.register_buffer(f"{WEIGHTS[3]}{direction}", zeros, persistent=False)

    def forward(self, steps: Tensor, lengths: Tensor | None = None) -> Tensor:
        outputs = self._run_direction(steps, "")
        if len(self.directions) > 1:
            order = _reversed_order(steps, lengths)
            backward = self._run_direction(_take(steps, order), "_reverse")
            outputs = torch.cat([outputs, _take(backward, order)], dim=2)
        if lengths is None:
            return outputs
        return outputs * mask(lengths, steps.shape[1]).to(outputs.dtype).unsqueeze(2)

    def _run_direction(self, steps: Tensor, direction: str) -> Tensor:
        return self.run(steps, *(getattr(self, f"{name}{direction}") for name in WEIGHTS))


def _loop(step: Callable[..., tuple[Tensor, Tensor]], inputs: Tensor, width: int) -> Tensor:
    h = c = inputs.new_zeros(len(inputs), width)
    outputs = []
    for x in inputs.unbind(1):
        h, c = step(x, h, c)
        outputs.append(h)
    return torch.stack(outputs, dim=1)


def _cells(steps: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor, _: Tensor) -> Tensor:
    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return _apply_gates(functional.linear(x, w_ih, bias) + functional.linear(h, w_hh), c)

    return _loop(step, steps, w_hh.shape[1])


def _scan(steps: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor, _: Tensor) -> Tensor:
    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return _apply_gates(x + functional.linear(h, w_hh), c)

    return _loop(step, functional.linear(steps, w_ih, bias), w_hh.shape[1])


def _block(steps: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor, zeros: Tensor) -> Tensor:
    """Call the operator of nn.LSTMCell."""

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        h, c = torch.lstm_cell(x, (h, c), w_ih, w_hh, bias, zeros)
        return h, c

    return _loop(step, steps, w_hh.shape[1])


RUNS: dict[str, Run] = {"cells": _cells, "scan": _scan, "block": _block}


def _apply_gates(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, dim=1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _reversed_order(steps: Tensor, lengths: Tensor | None) -> Tensor:
    at = torch.arange(steps.shape[1], device=steps.device).expand(steps.shape[:2])
    ends = at.shape[1] if lengths is None else lengths[:, None]
    return torch.where(at < ends, ends - 1 - at, at)


def _take(steps: Tensor, order: Tensor) -> Tensor:
    return steps.gather(1, order.long().unsqueeze(2).expand(steps.shape))
