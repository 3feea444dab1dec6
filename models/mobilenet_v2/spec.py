"""Sizes and layers of MobileNetV2 (Sandler et al., 2018). NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from models.layers.images import MirroredSpec

STEM, LAST = 32, 1280


@dataclass(frozen=True)
class Spec(MirroredSpec):
    """Paper's table 2; stages: (expansion, channels, units, strides of the first)."""

    stages: tuple[tuple[int, int, int, int], ...] = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    dropout: float = 0.2

    small: ClassVar = {"classes": 5, "stages": ((1, 16, 1, 1), (6, 24, 2, 2), (2, 32, 1, 2))}

    def network(self, x: Any, nn: Any) -> Any:
        x = nn.convolution(x, STEM, 3, "features.0.0", strides=2, padding=1)
        x = nn.relu6(nn.norm(x, "features.0.1"))
        inputs, at = STEM, 1
        for expansion, outputs, count, first_strides in self.stages:
            for number in range(count):
                path, shortcut, part = f"features.{at}.conv", x, int(expansion != 1)
                strides = 1 if number else first_strides
                if part:
                    x = nn.convolution(x, expansion * inputs, 1, f"{path}.0.0")
                    x = nn.relu6(nn.norm(x, f"{path}.0.1"))
                x = nn.depthwise(x, 3, f"{path}.{part}.0", strides=strides)
                x = nn.relu6(nn.norm(x, f"{path}.{part}.1"))
                x = nn.convolution(x, outputs, 1, f"{path}.{part + 1}")
                x = nn.norm(x, f"{path}.{part + 2}")
                if strides == 1 and inputs == outputs:
                    x = nn.add(shortcut, x)
                inputs, at = outputs, at + 1
        x = nn.convolution(x, LAST, 1, f"features.{at}.0")
        x = nn.global_average(nn.relu6(nn.norm(x, f"features.{at}.1")))
        return nn.linear(nn.dropout(x, self.dropout, "classifier.0"), self.classes, "classifier.1")
