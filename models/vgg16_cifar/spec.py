"""Sizes and layers of VGG-16 for CIFAR. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from models.layers.images import MirroredSpec


@dataclass(frozen=True)
class Spec(MirroredSpec):
    """VGG-16's convolutions, each with BatchNorm, and two linear layers.

    Source: Liu and Deng, 2015, section 3.

    Attributes:
        stages: (convolutions, channels) between two poolings.
        hidden: Width of the hidden linear layer.
        dropouts: Rates in the first stage, in the others, and around the hidden layer.
    """

    classes: int = 10
    stages: tuple[tuple[int, int], ...] = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
    hidden: int = 512
    dropouts: tuple[float, float, float] = (0.3, 0.4, 0.5)

    least_side = 32
    small: ClassVar = {"classes": 5, "stages": ((2, 4), (1, 6), (2, 8)), "hidden": 10}
    probe_side = 32

    def last_norm(self, side: int) -> int:
        """Return 1: the hidden layer's BatchNorm gets one value of an image.

        Args:
            side: Height and width of an image, in pixels.
        """
        return 1

    def network(self, x: Any, nn: Any) -> Any:
        first, later, hidden = self.dropouts
        for stage, (count, channels) in enumerate(self.stages, 1):
            for number in range(1, count + 1):
                x = nn.convolution(x, channels, 3, f"conv{stage}_{number}", padding=1)
                x = nn.relu(nn.norm(x, f"norm{stage}_{number}"))
                if number < count:
                    x = nn.dropout(x, first if stage == 1 else later, f"drop{stage}_{number}")
            x = nn.max_pool(x, 2, strides=2)
        x = nn.dropout(nn.global_average(x), hidden, "hidden_drop")
        x = nn.relu(nn.norm(nn.linear(x, self.hidden, "hidden"), "hidden_norm"))
        x = nn.dropout(x, hidden, "classifier_drop")
        return nn.linear(x, self.classes, "classifier")
