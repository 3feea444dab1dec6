"""Sizes of LeNet-5 and what is expected of them. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from models.contract import Batch
from models.layers.images import ImageSpec, Shapes, probe_batch


@dataclass(frozen=True)
class Spec(ImageSpec):
    """LeNet-5 for images of 28 × 28 in one channel: 61,706 parameters, ReLU and max pooling, every channel connected."""

    classes: int = 10

    least_side: ClassVar[int] = 28
    only_side: ClassVar[int | None] = 28
    channels: ClassVar[int] = 1

    def least_rows(self, side: int) -> int:
        """Smallest batch: 1, since there is no BatchNorm."""
        return 1

    def shapes(self) -> Shapes:
        found = Shapes()
        found.convolution("conv1", 6, 1, 5, bias=True)
        found.convolution("conv2", 16, 6, 5, bias=True)
        found.linear("linear1", 120, 16 * 5 * 5)
        found.linear("linear2", 84, 120)
        found.linear("linear3", self.classes, 84)
        return found


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """The whole network, which is small, and a batch of random images for the parity gate."""
    spec = Spec()
    return spec, probe_batch(spec, 28, rng)
