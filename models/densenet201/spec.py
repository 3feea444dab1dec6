"""Sizes of DenseNet-201 and what is expected of them. NumPy only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from models.contract import Batch, ModelError
from models.layers.images import ImageSpec, Shapes, probe_batch


@dataclass(frozen=True)
class Spec(ImageSpec):
    """classes: None gives the pooled features (n, 1920) without a classifier. The rest: the paper's table 1."""

    classes: int | None = 1000  # type: ignore[assignment]
    growth: int = 32
    blocks: tuple[int, int, int, int] = (6, 12, 48, 32)
    stem: int = 64
    bottleneck: int = 4

    least_side: ClassVar[int] = 29

    def __post_init__(self) -> None:
        if self.classes is not None and self.classes < 1:
            raise ModelError(f"densenet201: classes must be at least 1 or None, not {self.classes}")

    def shapes(self) -> Shapes:
        found = Shapes()
        channels, wide = self.stem, self.bottleneck * self.growth
        found.convolution("features.conv0", channels, self.channels, 7)
        found.norm("features.norm0", channels)
        for block, count in enumerate(self.blocks, 1):
            for layer in range(1, count + 1):
                path = f"features.denseblock{block}.denselayer{layer}"
                found.norm(f"{path}.norm1", channels)
                found.convolution(f"{path}.conv1", wide, channels, 1)
                found.norm(f"{path}.norm2", wide)
                found.convolution(f"{path}.conv2", self.growth, wide, 3)
                channels += self.growth
            if block < len(self.blocks):
                found.norm(f"features.transition{block}.norm", channels)
                found.convolution(f"features.transition{block}.conv", channels // 2, channels, 1)
                channels //= 2
        found.norm("features.norm5", channels)
        if self.classes is not None:
            found.linear("classifier", self.classes, channels)
        return found


def checkpoint_name(name: str) -> str:
    """torchvision's published file still says `norm.1` where its modules say `norm1`."""
    return re.sub(r"(denselayer\d+\.(?:norm|conv))\.(\d)", r"\1\2", name)


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """A shallow version with every kind of layer in it, or all of it, and a batch of small images for the parity gate."""
    spec = Spec() if full else Spec(classes=5, growth=4, blocks=(2, 1, 2, 1), stem=8)
    return spec, probe_batch(spec, 64, rng)
