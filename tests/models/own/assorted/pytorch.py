"""assorted in PyTorch; keras.py reads in parallel."""

from __future__ import annotations

from models.assorted.spec import Spec
from torch import Tensor, nn

from models.layers.pytorch import of_images


class Assorted(nn.Module):
    """forward(images (n, 3, height, width)) -> (n, classes)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(spec.channels, spec.width, 3, 2)
        self.norm = nn.GroupNorm(2, spec.width)
        self.attention = nn.MultiheadAttention(spec.width, spec.heads, batch_first=True)
        self.gru = nn.GRU(spec.width, spec.width, batch_first=True)
        self.classifier = nn.Linear(spec.width, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.up(x)).relu().flatten(2).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.classifier(self.gru(x)[1][0])


def build(spec: Spec) -> nn.Module:
    """forward(images (n, height, width, 3)) -> (n, classes)."""
    return of_images(Assorted(spec))
