"""Tacotron 2 in PyTorch; keras.py is its twin."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.layers.pytorch import OneBiasCell
from models.lstms.pytorch import lstm
from models.tacotron2.spec import CONVOLUTIONS, KERNEL, NEVER, Spec


class Tacotron2(nn.Module):  # type: ignore[misc]
    """forward(characters (n, C), their number (n,), frames before (n, F, bins), frames (n,)) -> (n, F, 2 · bins + 1).

    The last axis holds a frame, the frame as corrected, and the logit of its being the last.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(spec.characters, spec.width)
        self.convolutions = _convolutions([(spec.width, spec.width)] * CONVOLUTIONS)
        self.norms = nn.ModuleList(nn.BatchNorm1d(spec.width) for _ in self.convolutions)
        self.dropouts = nn.ModuleList(nn.Dropout(spec.dropout) for _ in self.convolutions)
        self.encoder = lstm(spec.lstm, spec.width, spec.width // 2, bidirectional=True, packed=True)
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

    def forward(self, characters: Tensor, spoken: Tensor, before: Tensor, frames: Tensor) -> Tensor:
        there = _mask(spoken, characters.shape[1])
        spoken_frames = self._spoken(self._encoded(characters, spoken, there), there, before)
        timed = _mask(frames, before.shape[1]).to(before.dtype).unsqueeze(2)
        mel = self.frame(spoken_frames) * timed
        return torch.cat([mel, mel + self._correction(mel, timed), self.stop(spoken_frames)], dim=2)

    def example_losses(
        self, inputs: tuple[Tensor, ...], outputs: Tensor, targets: Tensor
    ) -> Tensor:
        """(n,): squared errors of the frames, before and after the correction, and the cross-entropy of the end, each a mean."""
        bins, frames = self.spec.bins, inputs[3]
        timed = _mask(frames, targets.shape[1]).to(outputs.dtype)
        squared = (outputs[..., :bins] - targets).square().mean(2) + (
            outputs[..., bins:-1] - targets
        ).square().mean(2)
        last = (torch.arange(targets.shape[1], device=frames.device) == frames[:, None] - 1).to(
            outputs.dtype
        )
        ends = functional.binary_cross_entropy_with_logits(outputs[..., -1], last, reduction="none")
        return ((squared + ends) * timed).sum(1) / frames

    def _encoded(self, characters: Tensor, spoken: Tensor, there: Tensor) -> Tensor:
        x = self.embedding(characters)
        kept = there.to(x.dtype).unsqueeze(2)
        x = x * kept
        for convolution, norm, dropout in zip(
            self.convolutions, self.norms, self.dropouts, strict=True
        ):
            x = dropout(torch.relu(norm(convolution(x.transpose(1, 2))).transpose(1, 2))) * kept
        return self.encoder(x, spoken)

    def _spoken(self, memory: Tensor, there: Tensor, before: Tensor) -> Tensor:
        """(n, F, decoder + width): what the decoder says and what it attended to, frame by frame."""
        given = before
        for layer, dropout in zip(self.prenet, self.prenet_dropouts, strict=True):
            given = dropout(torch.relu(layer(given)))
        keys, context, so_far = (
            self.key(memory),
            torch.zeros_like(memory[:, 0]),
            torch.zeros_like(memory[:, :, 0]),
        )
        zeros = given.new_zeros(len(given), self.spec.decoder)
        asking, speaking, said = (zeros, zeros), (zeros, zeros), []
        for now in given.unbind(1):
            asking = self.asking(torch.cat([now, context], dim=1), asking)
            shares = self._shares(asking[0], keys, so_far, there)
            context, so_far = (shares.unsqueeze(1) @ memory).squeeze(1), so_far + shares
            speaking = self.speaking(asking[0], speaking)
            said.append(torch.cat([speaking[0], context], dim=1))
        return torch.stack(said, dim=1)

    def _shares(self, asking: Tensor, keys: Tensor, so_far: Tensor, there: Tensor) -> Tensor:
        """(n, C): how much of the attention each character gets."""
        places = self.where(self.place(so_far.unsqueeze(1)).transpose(1, 2))
        scores = self.score(torch.tanh(self.query(asking).unsqueeze(1) + keys + places)).squeeze(2)
        return scores.masked_fill(~there, NEVER).softmax(1)

    def _correction(self, mel: Tensor, timed: Tensor) -> Tensor:
        x, last = mel, len(self.postnet) - 1
        for index, (convolution, norm) in enumerate(
            zip(self.postnet, self.postnet_norms, strict=True)
        ):
            x = norm(convolution(x.transpose(1, 2))).transpose(1, 2)
            x = self.postnet_dropouts[index](x if index == last else torch.tanh(x)) * timed
        return x


def build(spec: Spec) -> nn.Module:
    return Tacotron2(spec)


def _convolutions(sizes: list[tuple[int, int]]) -> nn.ModuleList:
    return nn.ModuleList(
        nn.Conv1d(*size, KERNEL, padding=KERNEL // 2, bias=False) for size in sizes
    )


def _mask(lengths: Tensor, most: int) -> Tensor:
    return torch.arange(most, device=lengths.device) < lengths[:, None]
