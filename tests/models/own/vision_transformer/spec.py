"""Sizes of vision_transformer and their expected figures. NumPy only.

Source: Dosovitskiy et al., An image is worth 16x16 words, ICLR 2021, section 3.1; the factors for
the channels of the attention are those of Touvron et al., 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.contract import Batch
from models.layers.images import ImageSpec, Shapes, probe_batch


@dataclass(frozen=True)
class Spec(ImageSpec):
    """Patches, a token for the class, positions, blocks of attention and two linear layers."""

    classes: int = 10
    width: int = 32
    heads: int = 4
    blocks: int = 4
    patch: int = 4
    dropout: float = 0.1

    only_side = 16

    @property
    def tokens(self) -> int:
        return (self.only_side // self.patch) ** 2 + 1

    def shapes(self) -> Shapes:
        """Shape of every weight, by PyTorch's names; add a line for each layer that has weights."""
        results = Shapes()
        results.convolution("patches", self.width, self.channels, self.patch, bias=True)
        results["class_token"] = (1, 1, self.width)
        results.embedding("positions", self.tokens, self.width)
        for index in range(self.blocks):
            path = f"blocks.{index}"
            results.layer_norm(f"{path}.norm1", self.width)
            results.attention(f"{path}.attention", self.width)
            results.scale(f"{path}.scale", self.width)
            results.layer_norm(f"{path}.norm2", self.width)
            results.linear(f"{path}.linear1", 4 * self.width, self.width)
            results.linear(f"{path}.linear2", self.width, 4 * self.width)
        results.layer_norm("norm", self.width)
        results.linear("classifier", self.classes, self.width)
        return results


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """A small network with every kind of layer in it, or the whole one, and a batch."""
    spec = Spec() if full else Spec(classes=4, width=8, heads=2, blocks=2)
    return spec, probe_batch(spec, spec.only_side, rng)
