"""Tacotron 2 in PyTorch; keras.py is its twin."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.layers import NEVER
from models.layers.pytorch import OneBiasCell, mask
from models.lstms.pytorch import lstm
from models.tacotron2.spec import CONVOLUTIONS, KERNEL, POSTNET, Spec


class Tacotron2(nn.Module):  # type: ignore[misc]
    """forward(characters (n, C), their number (n,), frames before, frames (n,)) -> outputs.

    keras.py describes the outputs (n, F, 2 · bins + 1).
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(spec.characters, spec.width)
        self.convolutions = _convolutions([(spec.width, spec.width)] * CONVOLUTIONS)
        self.norms = nn.ModuleList(nn.BatchNorm1d(spec.width) for _ in self.convolutions)
        self.dropouts = nn.ModuleList(nn.Dropout(spec.dropout) for _ in self.convolutions)
        self.encoder = lstm(spec.lstm, spec.width, spec.width // 2, bidirectional=True)
        self.prenet = nn.ModuleList(
            nn.Linear(size, spec.prenet, bias=False) for size in (spec.bins, spec.prenet)
        )
        self.prenet_dropouts = nn.ModuleList(nn.Dropout(spec.dropout) for _ in self.prenet)
        self.asking, self.speaking = (OneBiasCell(*sizes) for sizes in spec.lstms.values())
        self.query = nn.Linear(spec.decoder, spec.attention, bias=False)
        self.key = nn.Linear(spec.width, spec.attention, bias=False)
        self.place = nn.Conv1d(1, spec.filters, spec.reach, padding=spec.reach // 2, bias=False)
        self.where = nn.Linear(spec.filters, spec.attention, bias=False)
        self.score = nn.Linear(spec.attention, 1, bias=False)
        self.frame = nn.Linear(spec.decoder + spec.width, spec.bins)
        self.stop = nn.Linear(spec.decoder + spec.width, 1)
        self.postnet = _convolutions(spec.postnet)
        self.postnet_norms = nn.ModuleList(nn.BatchNorm1d(outputs) for _, outputs in spec.postnet)
        self.postnet_dropouts = nn.ModuleList(nn.Dropout(spec.dropout) for _ in self.postnet)

    def forward(self, characters: Tensor, counts: Tensor, before: Tensor, frames: Tensor) -> Tensor:
        inside = mask(counts, characters.shape[1])
        states = self._decode(self._encode(characters, counts, inside), inside, before)
        timed = mask(frames, before.shape[1]).to(before.dtype).unsqueeze(2)
        mel = self.frame(states) * timed
        layers = self.postnet, self.postnet_norms, self.postnet_dropouts
        functions = [*[torch.tanh] * (POSTNET - 1), nn.Identity()]
        corrected = mel + _convolve(mel, layers, functions, timed)
        return torch.cat([mel, corrected, self.stop(states)], dim=2)

    def example_losses(
        self, inputs: tuple[Tensor, ...], outputs: Tensor, targets: Tensor
    ) -> Tensor:
        bins, frames, longest = self.spec.bins, inputs[3], targets.shape[1]
        timed = mask(frames, longest).to(outputs.dtype)
        squared = (outputs[..., :bins] - targets).square().mean(2)
        squared = squared + (outputs[..., bins:-1] - targets).square().mean(2)
        is_last = torch.arange(longest, device=frames.device) == frames[:, None] - 1
        entropies = functional.binary_cross_entropy_with_logits(
            outputs[..., -1], is_last.to(outputs.dtype), reduction="none"
        )
        return ((squared + entropies) * timed).sum(1) / frames

    def _encode(self, characters: Tensor, counts: Tensor, inside: Tensor) -> Tensor:
        x = self.embedding(characters)
        timed = inside.to(x.dtype).unsqueeze(2)
        layers = self.convolutions, self.norms, self.dropouts
        x = _convolve(x * timed, layers, [torch.relu] * CONVOLUTIONS, timed)
        return self.encoder(x, counts)

    def _decode(self, memory: Tensor, inside: Tensor, before: Tensor) -> Tensor:
        x = before
        for layer, dropout in zip(self.prenet, self.prenet_dropouts, strict=True):
            x = dropout(torch.relu(layer(x)))
        keys = self.key(memory)
        context, total = torch.zeros_like(memory[:, 0]), torch.zeros_like(memory[:, :, 0])
        zeros = x.new_zeros(len(x), self.spec.decoder)
        asking, speaking, outputs = (zeros, zeros), (zeros, zeros), []
        for frame in x.unbind(1):
            asking = self.asking(torch.cat([frame, context], dim=1), asking)
            shares = self._attend(asking[0], keys, total, inside)
            context, total = (shares.unsqueeze(1) @ memory).squeeze(1), total + shares
            speaking = self.speaking(asking[0], speaking)
            outputs.append(torch.cat([speaking[0], context], dim=1))
        return torch.stack(outputs, dim=1)

    def _attend(self, asking: Tensor, keys: Tensor, total: Tensor, inside: Tensor) -> Tensor:
        places = self.where(self.place(total.unsqueeze(1)).transpose(1, 2))
        scores = self.score(torch.tanh(self.query(asking).unsqueeze(1) + keys + places)).squeeze(2)
        return scores.masked_fill(~inside, NEVER).softmax(1)


build = Tacotron2


def _convolutions(sizes: list[tuple[int, int]]) -> nn.ModuleList:
    options = {"padding": KERNEL // 2, "bias": False}
    return nn.ModuleList(nn.Conv1d(*size, KERNEL, **options) for size in sizes)


def _convolve(
    x: Tensor,
    layers: tuple[nn.ModuleList, nn.ModuleList, nn.ModuleList],
    functions: list[Callable[[Tensor], Tensor]],
    timed: Tensor,
) -> Tensor:
    """Convolve, normalise, activate and drop, with zeros behind the ends."""
    for convolution, norm, dropout, activate in zip(*layers, functions, strict=True):
        x = activate(norm(convolution(x.transpose(1, 2))).transpose(1, 2))
        x = dropout(x) * timed
    return x
