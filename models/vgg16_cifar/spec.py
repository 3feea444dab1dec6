"""Sizes of VGG-16 for CIFAR and what is expected of them. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from models.contract import Batch
from models.layers.images import ImageSpec, Shapes, probe_batch


@dataclass(frozen=True)
class Spec(ImageSpec):
    """VGG-16's convolutions, each with BatchNorm, and two linear layers (Liu and Deng, 2015, section 3).

    stages: (convolutions, channels) between two poolings. dropouts: rate inside the first stage, inside the others, and around
    the hidden linear layer.
    """

    classes: int = 10
    stages: tuple[tuple[int, int], ...] = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
    hidden: int = 512
    dropouts: tuple[float, float, float] = (0.3, 0.4, 0.5)

    least_side: ClassVar[int] = 32

    def last_norm(self, side: int) -> int:
        """The one of the hidden layer sees a value an image."""
        return 1

    def shapes(self) -> Shapes:
        found = Shapes()
        inputs = self.channels
        for stage, (count, outputs) in enumerate(self.stages, 1):
            for number in range(1, count + 1):
                found.convolution(f"conv{stage}_{number}", outputs, inputs, 3)
                found.norm(f"norm{stage}_{number}", outputs)
                inputs = outputs
        found.linear("hidden", self.hidden, inputs)
        found.norm("hidden_norm", self.hidden)
        found.linear("classifier", self.classes, self.hidden)
        return found


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """A narrow version or all of it, and a batch of small images for the parity gate."""
    spec = Spec() if full else Spec(classes=5, stages=((2, 4), (1, 6), (2, 8)), hidden=10)
    return spec, probe_batch(spec, 32, rng)
