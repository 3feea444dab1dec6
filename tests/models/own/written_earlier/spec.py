"""Sizes of written_earlier and what is expected of them. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.contract import Batch
from models.layers.images import ImageSpec, Shapes, initial_weights, parameters, probe_batch, shapes


@dataclass(frozen=True)
class Spec(ImageSpec):
    """Two convolutions and a linear layer, for colour images of any size from 4 x 4 on."""

    classes: int = 10
    width: int = 16

    least_side = 4

    def shapes(self) -> Shapes:
        """Shape of every weight, by PyTorch's names; add a line for each layer that has weights."""
        found = Shapes()
        found.convolution("conv1", self.width, self.channels, 3, bias=True)
        found.convolution("conv2", 2 * self.width, self.width, 3, bias=True)
        found.linear("classifier", self.classes, 2 * self.width)
        return found


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """A small network with every kind of layer in it, or the whole one, and a batch."""
    spec = Spec() if full else Spec(classes=4, width=3)
    return spec, probe_batch(spec, 8, rng)


__all__ = ["Spec", "initial_weights", "parameters", "probe", "shapes"]
