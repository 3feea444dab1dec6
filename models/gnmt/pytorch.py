"""GNMT in PyTorch; keras.py is its twin."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.gnmt.spec import RESIDUAL_FROM, Spec
from models.layers import NEVER
from models.layers.pytorch import mask
from models.lstms.pytorch import lstm


class GNMT(nn.Module):  # type: ignore[misc]
    """forward(source (n, S), lengths (n,), target (n, T)) -> logits (n · T, vocabulary)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        inputs = spec.inputs
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.encoder = nn.ModuleList(
            lstm(spec.lstm, size, spec.width, bidirectional=index == 0)
            for index, size in enumerate(inputs["encoder"])
        )
        self.decoder = nn.ModuleList(
            lstm(spec.lstm, size, spec.width) for size in inputs["decoder"]
        )
        self.encoder_dropout = nn.ModuleList(nn.Dropout(spec.dropout) for _ in self.encoder)
        self.decoder_dropout = nn.ModuleList(nn.Dropout(spec.dropout) for _ in self.decoder)
        self.query = nn.Linear(spec.width, spec.width, bias=False)
        self.key = nn.Linear(spec.width, spec.width, bias=False)
        self.score = nn.Linear(spec.width, 1, bias=False)
        self.words = nn.Linear(spec.width, spec.vocabulary)

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder[0](self.encoder_dropout[0](self.embedding(source)), lengths)
        memory = _upper(self.encoder, self.encoder_dropout, memory)
        x = self.decoder[0](self.decoder_dropout[0](self.embedding(target)))
        context = self._attend(x, memory, mask(lengths, source.shape[1]))
        return self.words(_upper(self.decoder, self.decoder_dropout, x, context)).flatten(0, 1)

    def _attend(self, x: Tensor, memory: Tensor, inside: Tensor) -> Tensor:
        hidden = torch.tanh(self.query(x).unsqueeze(2) + self.key(memory).unsqueeze(1))
        scores = self.score(hidden).squeeze(3).masked_fill(~inside.unsqueeze(1), NEVER)
        return scores.softmax(2) @ memory


build = GNMT


def _upper(
    lstms: nn.ModuleList, dropouts: nn.ModuleList, x: Tensor, context: Tensor | None = None
) -> Tensor:
    """Run the layers above the first, which all get the context."""
    for index in range(1, len(lstms)):
        steps = dropouts[index](x)
        if context is not None:
            steps = torch.cat([steps, context], dim=2)
        output = lstms[index](steps)
        x = output + x if index >= RESIDUAL_FROM else output
    return x
