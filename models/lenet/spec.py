"""LeNet-5 (LeCun et al., 1998) as tutorials write it: sizes and layers. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.layers.images import MirroredSpec


@dataclass(frozen=True)
class Spec(MirroredSpec):
    """LeNet-5 for images of 28 × 28 in one channel: 61,706 parameters, ReLU and max pooling."""

    classes: int = 10

    least_side = 28
    only_side = 28
    channels = 1
    probe_side = 28

    def network(self, x: Any, nn: Any) -> Any:
        x = nn.relu(nn.convolution(x, 6, 5, "conv1", padding=2, bias=True))
        x = nn.max_pool(x, 2, strides=2)
        x = nn.relu(nn.convolution(x, 16, 5, "conv2", bias=True))
        x = nn.flatten(nn.max_pool(x, 2, strides=2), 5 * 5)
        x = nn.relu(nn.linear(x, 120, "linear1"))
        x = nn.relu(nn.linear(x, 84, "linear2"))
        return nn.linear(x, self.classes, "linear3")
