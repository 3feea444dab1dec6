"""Sizes of a network of the layers that each framework brings itself. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.contract import Batch
from models.layers.images import ImageSpec, Shapes, probe_batch


@dataclass(frozen=True)
class Spec(ImageSpec):
    """A transposed convolution, GroupNorm, attention over the pixels, a GRU along them."""

    classes: int = 4
    width: int = 8
    heads: int = 2

    def shapes(self) -> Shapes:
        """Shape of every weight, by PyTorch's names."""
        found, width = Shapes(), self.width
        found["up.weight"], found["up.bias"] = (self.channels, width, 3, 3), (width,)
        found.layer_norm("norm", width)
        found["attention.in_proj_weight"] = (3 * width, width)
        found["attention.in_proj_bias"] = (3 * width,)
        found.linear("attention.out_proj", width, width)
        for part in ("ih", "hh"):
            found[f"gru.weight_{part}_l0"] = (3 * width, width)
            found[f"gru.bias_{part}_l0"] = (3 * width,)
        found.linear("classifier", self.classes, width)
        return found


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """The network, which is small, and a batch."""
    return Spec(), probe_batch(Spec(), 4 if full else 3, rng)
