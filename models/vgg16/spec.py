"""Sizes of VGG-16 and what is expected of them. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from models.contract import Batch
from models.layers.images import ImageSpec, Shapes, probe_batch

# Whatever the image's size, the classifier sees 7 × 7: the mean over as many parts of what is left of it.
POOLED = 7


@dataclass(frozen=True)
class Spec(ImageSpec):
    """Configuration D of the paper's table 1. stages: (convolutions, channels) between two poolings."""

    stages: tuple[tuple[int, int], ...] = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
    hidden: int = 4096
    dropout: float = 0.5

    least_side: ClassVar[int] = 32

    def least_rows(self, side: int) -> int:
        """Smallest batch: 1, since there is no BatchNorm."""
        return 1

    def shapes(self) -> Shapes:
        found = Shapes()
        inputs = self.channels
        for stage in self.convolutions():
            for path, outputs in stage:
                found.convolution(path, outputs, inputs, 3, bias=True)
                inputs = outputs
        inputs *= POOLED**2
        for path, outputs in (
            ("classifier.0", self.hidden),
            ("classifier.3", self.hidden),
            ("classifier.6", self.classes),
        ):
            found.linear(path, outputs, inputs)
            inputs = outputs
        return found

    def convolutions(self) -> list[list[tuple[str, int]]]:
        """(module path, channels) of every convolution, stage by stage: each is followed by a ReLU, a stage by a pooling."""
        found, at = [], 0
        for count, channels in self.stages:
            found.append([(f"features.{at + 2 * number}", channels) for number in range(count)])
            at += 2 * count + 1
        return found


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """A narrow version or all of it, and a batch whose pooling has parts of unequal size, for the parity gate."""
    spec = Spec() if full else Spec(classes=5, stages=((1, 4), (2, 6), (1, 8)), hidden=10)
    return spec, probe_batch(spec, 72, rng)
