"""Caption decoder in PyTorch; keras.py is its twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.caption_decoder.spec import CaptionDecoderSpec
from models.lstms.pytorch import WEIGHTS, lstm

State = tuple[Tensor, Tensor, Tensor]


class CaptionDecoder(nn.Module):  # type: ignore[misc]
    """forward(features (R, F), tokens (R, T), positions (N,)) -> logits (N, V).

    keras.py describes the arguments.
    """

    def __init__(self, spec: CaptionDecoderSpec) -> None:
        super().__init__()
        self.image = nn.Linear(spec.features, spec.width)
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.lstm = lstm(spec.lstm, spec.width, spec.width)
        self.merge = nn.Linear(spec.width, spec.hidden)
        self.words = nn.Linear(spec.hidden, spec.vocabulary)
        self.state_dropout = nn.Dropout(spec.dropout)
        self.merged_dropout = nn.Dropout(spec.dropout)

    def forward(self, features: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        image = torch.relu(self.image(features))
        steps = torch.cat([image.unsqueeze(1), self.embedding(tokens)], dim=1)
        states = self.lstm(steps)[:, 1:].flatten(0, 1)
        rows = positions // tokens.shape[1]
        return self._logits(states.index_select(0, positions), image.index_select(0, rows))

    def begin(self, features: Tensor) -> State:
        """Return the state after the image step: (image vector, h, c), each (n, width)."""
        image = torch.relu(self.image(features))
        zeros = torch.zeros_like(image)
        return image, *self._cell(image, zeros, zeros)

    def advance(self, state: State, tokens: Tensor) -> tuple[Tensor, State]:
        """Advance by one word: tokens (n,) -> logits (n, V) and the state after them."""
        image, h, c = state
        h, c = self._cell(self.embedding(tokens), h, c)
        return self._logits(h, image), (image, h, c)

    def _cell(self, step: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        weights = [getattr(self.lstm, name) for name in WEIGHTS]
        h, c = torch.lstm_cell(step, (h, c), *weights)
        return h, c

    def _logits(self, states: Tensor, image: Tensor) -> Tensor:
        merged = torch.relu(self.merge(self.state_dropout(states) + image))
        return self.words(self.merged_dropout(merged))


build = CaptionDecoder


def search(
    network: Any,
    features: Tensor,
    *,
    start: int,
    end: int,
    words: int,
    beams: int,
    compiled: Callable[..., Any],
) -> Tensor:
    """Return tokens, int32 (n, words), by greedy or beam search; the step of a word is compiled."""
    advance, tokens = compiled(_advance), {"start": start, "end": end, "words": words}
    if beams == 1:
        return _greedy(network, advance, features, **tokens)
    return _beam(network, advance, features, **tokens, beams=beams)


def _advance(
    network: Any, state: tuple[Tensor, ...], tokens: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    logits, state = network.advance(state, tokens)
    return logits, state


def _greedy(
    network: Any, advance: Callable[..., Any], features: Tensor, *, start: int, end: int, words: int
) -> Tensor:
    """Return the likeliest token after those before it; a finished caption goes on with `end`."""
    n, device = features.shape[0], features.device
    state = network.begin(features)
    tokens = torch.full((n,), start, dtype=torch.int32, device=device)
    finished = torch.zeros(n, dtype=torch.bool, device=device)
    captions = torch.empty((n, words), dtype=torch.int32, device=device)
    for word in range(words):
        logits, state = advance(network, state, tokens)
        tokens = logits.argmax(1).int().masked_fill(finished, end)
        captions[:, word] = tokens
        finished = tokens == end
    return captions


def _beam(
    network: Any,
    advance: Callable[..., Any],
    features: Tensor,
    *,
    start: int,
    end: int,
    words: int,
    beams: int,
) -> Tensor:
    """Return each image's best beam, over rows n·beams + beam.

    A finished beam goes on with `end` for free.
    """
    n, rows, device = features.shape[0], features.shape[0] * beams, features.device
    state = tuple(tensor.repeat_interleave(beams, dim=0) for tensor in network.begin(features))
    tokens = torch.full((rows,), start, dtype=torch.int32, device=device)
    finished = torch.zeros(rows, dtype=torch.bool, device=device)
    captions = torch.full((rows, words), end, dtype=torch.int32, device=device)
    scores = torch.full((n, beams), -torch.inf, dtype=features.dtype, device=device)
    scores[:, 0] = 0  # all beams begin alike: only the first has children
    first_row = torch.arange(0, rows, beams, device=device).unsqueeze(1)
    for word in range(words):
        logits, state = advance(network, state, tokens)
        vocabulary = logits.shape[1]
        steps = functional.log_softmax(logits, dim=1).masked_fill(finished.unsqueeze(1), -torch.inf)
        steps[:, end] = steps[:, end].masked_fill(finished, 0)
        totals = scores.unsqueeze(2) + steps.view(n, beams, vocabulary)
        scores, best = totals.view(n, -1).topk(beams)
        parents = (first_row + best // vocabulary).flatten()
        tokens = (best % vocabulary).flatten().int()
        state = tuple(tensor[parents] for tensor in state)
        captions = captions[parents]
        captions[:, word] = tokens
        finished = tokens == end
    return captions.view(n, beams, words)[:, 0]
