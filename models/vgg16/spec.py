"""Sizes and layers of VGG-16 (Simonyan and Zisserman, 2015). NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from models.layers.images import MirroredSpec

# The classifier gets 7 × 7 of an image of any size: means over as many parts.
POOLED = 7


@dataclass(frozen=True)
class Spec(MirroredSpec):
    """Configuration D of the paper's table 1; stages: (convolutions, channels) between poolings."""

    stages: tuple[tuple[int, int], ...] = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
    hidden: int = 4096
    dropout: float = 0.5

    least_side = 32
    small: ClassVar = {"classes": 5, "stages": ((1, 4), (2, 6), (1, 8)), "hidden": 10}
    probe_side = 72  # its pooling has parts of unequal size

    def network(self, x: Any, nn: Any) -> Any:
        at = 0
        for count, channels in self.stages:
            for _ in range(count):
                path = f"features.{at}"
                x = nn.relu(nn.convolution(x, channels, 3, path, padding=1, bias=True))
                at += 2
            x = nn.max_pool(x, 2, strides=2)
            at += 1
        x = nn.flatten(nn.adaptive_average(x, POOLED), POOLED**2)
        for at in (0, 3):
            x = nn.relu(nn.linear(x, self.hidden, f"classifier.{at}"))
            x = nn.dropout(x, self.dropout, f"classifier.{at + 2}")
        return nn.linear(x, self.classes, "classifier.6")
