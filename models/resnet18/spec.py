"""Sizes and layers of ResNet-18 and its siblings (He et al., 2016). NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from models.layers.images import MirroredSpec

STEM = 64


@dataclass(frozen=True)
class Spec(MirroredSpec):
    """Sizes of a ResNet of the paper's table 1; by default of ResNet-18.

    Attributes:
        blocks: Residual units of each stage.
        bottleneck: Whether a unit is 1×1, 3×3, 1×1 instead of 3×3, 3×3; the first 3×3 strides.
    """

    blocks: tuple[int, int, int, int] = (2, 2, 2, 2)
    bottleneck: bool = False

    small: ClassVar = {"classes": 5, "blocks": (1, 1, 1, 1)}

    def network(self, x: Any, nn: Any) -> Any:
        x = nn.convolution(x, STEM, 7, "conv1", strides=2, padding=3)
        x = nn.max_pool(nn.relu(nn.norm(x, "bn1")), 3, strides=2, padding=1)
        inputs = STEM
        for stage, count in enumerate(self.blocks):
            width = STEM * 2**stage
            outputs = width * (4 if self.bottleneck else 1)
            for number in range(count):
                strides = 2 if stage and not number else 1
                convolutions = [(width, 3, strides), (width, 3, 1)]
                if self.bottleneck:
                    convolutions = [(width, 1, 1), (width, 3, strides), (outputs, 1, 1)]
                path, shortcut = f"layer{stage + 1}.{number}", x
                for at, (filters, size, stride) in enumerate(convolutions, 1):
                    options = {"strides": stride, "padding": size // 2}
                    x = nn.convolution(x, filters, size, f"{path}.conv{at}", **options)
                    x = nn.norm(x, f"{path}.bn{at}")
                    if at < len(convolutions):
                        x = nn.relu(x)
                if strides > 1 or inputs != outputs:
                    path = f"{path}.downsample"
                    shortcut = nn.convolution(shortcut, outputs, 1, f"{path}.0", strides=strides)
                    shortcut = nn.norm(shortcut, f"{path}.1")
                x, inputs = nn.relu(nn.add(x, shortcut)), outputs
        return nn.linear(nn.global_average(x), self.classes, "fc")
