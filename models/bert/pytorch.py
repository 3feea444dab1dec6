"""BERT in PyTorch; keras.py is its twin."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.bert.spec import EPSILON, Spec
from models.layers.pytorch import attend, gelu, mask


class Embeddings(nn.Module):  # type: ignore[misc]
    """forward(tokens, types (n, length)) -> (n, length, width)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(spec.vocabulary, spec.width)
        self.position_embeddings = nn.Embedding(spec.positions, spec.width)
        self.token_type_embeddings = nn.Embedding(spec.types, spec.width)
        self.LayerNorm = nn.LayerNorm(spec.width, EPSILON)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, tokens: Tensor, types: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = (
            self.word_embeddings(tokens)
            + self.token_type_embeddings(types)
            + self.position_embeddings(positions)
        )
        return self.dropout(self.LayerNorm(x))


class SelfAttention(nn.Module):  # type: ignore[misc]
    """forward(x (n, length, width), seen (n · heads, 1, length)) -> (n, length, width)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.heads = spec.heads
        self.query = nn.Linear(spec.width, spec.width)
        self.key = nn.Linear(spec.width, spec.width)
        self.value = nn.Linear(spec.width, spec.width)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        return attend(query, key, value, self.heads, seen=seen, drop=self.dropout)


class Output(nn.Module):  # type: ignore[misc]
    """End of a sub-layer: forward(x (n, length, inputs), before (n, length, width))."""

    def __init__(self, spec: Spec, inputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, spec.width)
        self.LayerNorm = nn.LayerNorm(spec.width, EPSILON)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(x)) + before)


class Layer(nn.Module):  # type: ignore[misc]
    """forward(x (n, length, width), seen (n · heads, 1, length)) -> (n, length, width)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.attention = nn.ModuleDict(
            {"self": SelfAttention(spec), "output": Output(spec, spec.width)}
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(spec.width, spec.intermediate)})
        self.output = Output(spec, spec.intermediate)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = self.attention["output"](self.attention["self"](x, seen), x)
        return self.output(gelu(self.intermediate["dense"](x)), x)


class Bert(nn.Module):  # type: ignore[misc]
    """forward(tokens (n, length), lengths (n,), types (n, length)) -> logits (n, classes).

    Without classes it returns pooled vectors (n, width).
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.heads, self.classes = spec.heads, spec.classes
        self.embeddings = Embeddings(spec)
        self.encoder = nn.ModuleDict(
            {"layer": nn.ModuleList(Layer(spec) for _ in range(spec.layers))}
        )
        self.pooler = nn.ModuleDict({"dense": nn.Linear(spec.width, spec.width)})
        if spec.classes is not None:
            self.dropout = nn.Dropout(spec.dropout)
            self.classifier = nn.Linear(spec.width, spec.classes)

    def forward(self, tokens: Tensor, lengths: Tensor, types: Tensor) -> Tensor:
        seen = mask(lengths, tokens.shape[1]).repeat_interleave(self.heads, 0)[:, None]
        x = self.embeddings(tokens, types)
        for layer in self.encoder["layer"]:
            x = layer(x, seen)
        pooled = self.pooler["dense"](x[:, 0]).tanh()
        return self.classifier(self.dropout(pooled)) if self.classes is not None else pooled


build = Bert
