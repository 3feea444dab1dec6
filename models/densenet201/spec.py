"""Sizes and layers of DenseNet-201 (Huang et al., 2017). NumPy only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from models.layers.images import MirroredSpec


@dataclass(frozen=True)
class Spec(MirroredSpec):
    """Paper's table 1; without classes the network returns pooled features (n, 1920)."""

    classes: int | None = 1000  # type: ignore[assignment]
    growth: int = 32
    blocks: tuple[int, int, int, int] = (6, 12, 48, 32)
    stem: int = 64
    bottleneck: int = 4

    least_side = 29
    small: ClassVar = {"classes": 5, "growth": 4, "blocks": (2, 1, 2, 1), "stem": 8}

    def network(self, x: Any, nn: Any) -> Any:
        channels, wide = self.stem, self.bottleneck * self.growth
        x = nn.convolution(x, channels, 7, "features.conv0", strides=2, padding=3)
        x = nn.relu(nn.norm(x, "features.norm0"))
        x = nn.max_pool(x, 3, strides=2, padding=1)
        for block, count in enumerate(self.blocks, 1):
            for layer in range(1, count + 1):
                path = f"features.denseblock{block}.denselayer{layer}"
                new = nn.relu(nn.norm(x, f"{path}.norm1"))
                new = nn.relu(
                    nn.norm(nn.convolution(new, wide, 1, f"{path}.conv1"), f"{path}.norm2")
                )
                new = nn.convolution(new, self.growth, 3, f"{path}.conv2", padding=1)
                x = nn.concatenate(x, new)
                channels += self.growth
            if block < len(self.blocks):
                path, channels = f"features.transition{block}", channels // 2
                x = nn.convolution(nn.relu(nn.norm(x, f"{path}.norm")), channels, 1, f"{path}.conv")
                x = nn.average_pool(x, 2, strides=2)
        x = nn.global_average(nn.relu(nn.norm(x, "features.norm5")))
        return x if self.classes is None else nn.linear(x, self.classes, "classifier")


def checkpoint_name(name: str) -> str:
    """Return the name of an array here.

    Args:
        name: In torchvision's published file, which has `norm.1` for `norm1`.
    """
    return re.sub(r"(denselayer\d+\.(?:norm|conv))\.(\d)", r"\1\2", name)
