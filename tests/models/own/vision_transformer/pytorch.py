"""vision_transformer in PyTorch; keras.py reads in parallel."""

from __future__ import annotations

import torch
from models.vision_transformer.spec import Spec
from torch import Tensor, nn

from models.layers.pytorch import Attention, PositionEmbedding, Scale, gelu, of_images


class Block(nn.Module):
    """forward(x (n, tokens, width)) -> the same shape."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(spec.width)
        self.attention = Attention(spec.width, spec.heads, spec.dropout)
        self.scale = Scale(spec.width)
        self.norm2 = nn.LayerNorm(spec.width)
        self.linear1 = nn.Linear(spec.width, 4 * spec.width)
        self.linear2 = nn.Linear(4 * spec.width, spec.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale(self.attention(self.norm1(x)))
        return x + self.linear2(gelu(self.linear1(self.norm2(x))))


class VisionTransformer(nn.Module):
    """forward(images (n, 3, height, width)) -> (n, classes)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.patches = nn.Conv2d(spec.channels, spec.width, spec.patch, spec.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, spec.width))
        self.positions = PositionEmbedding(spec.tokens, spec.width)
        self.blocks = nn.Sequential(*(Block(spec) for _ in range(spec.blocks)))
        self.norm = nn.LayerNorm(spec.width)
        self.classifier = nn.Linear(spec.width, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1)
        x = self.norm(self.blocks(self.positions(x)))
        return self.classifier(x[:, 0])


def build(spec: Spec) -> nn.Module:
    """forward(images (n, height, width, 3)) -> (n, classes)."""
    return of_images(VisionTransformer(spec))
