"""Sizes and layers of LeNet-5. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from models.contract import Batch
from models.layers.images import MirroredSpec, probe_batch


@dataclass(frozen=True)
class Spec(MirroredSpec):
    """LeNet-5 for images of 28 × 28 in one channel: 61,706 parameters, ReLU and max pooling."""

    classes: int = 10

    least_side: ClassVar[int] = 28
    only_side: ClassVar[int | None] = 28
    channels: ClassVar[int] = 1

    def least_rows(self, side: int) -> int:
        """Return 1: there is no BatchNorm."""
        return 1

    def network(self, x: Any, nn: Any) -> Any:
        x = nn.relu(nn.convolution(x, 6, 5, "conv1", padding=2, bias=True))
        x = nn.max_pool(x, 2, strides=2)
        x = nn.relu(nn.convolution(x, 16, 5, "conv2", bias=True))
        x = nn.flatten(nn.max_pool(x, 2, strides=2), 5 * 5)
        x = nn.relu(nn.linear(x, 120, "linear1"))
        x = nn.relu(nn.linear(x, 84, "linear2"))
        return nn.linear(x, self.classes, "linear3")


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """Return the whole network, which is small, and random images for the parity gate."""
    spec = Spec()
    return spec, probe_batch(spec, 28, rng)
