"""Sizes of convnext and what is expected of them. NumPy only.

Source: Liu et al., A ConvNet for the 2020s, CVPR 2022, section 2 and appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.contract import Batch
from models.layers.images import ImageSpec, Shapes, probe_batch


@dataclass(frozen=True)
class Spec(ImageSpec):
    """Stages of blocks: a depthwise convolution, LayerNorm, two linear layers, layer scale."""

    classes: int = 10
    widths: tuple[int, ...] = (16, 32, 64)
    depths: tuple[int, ...] = (1, 2, 1)

    least_side = 8

    def shapes(self) -> Shapes:
        """Shape of every weight, by PyTorch's names; add a line for each layer that has weights."""
        results, inputs = Shapes(), self.channels
        for stage, (width, depth) in enumerate(zip(self.widths, self.depths, strict=True)):
            if stage:
                results.layer_norm(f"stages.{stage}.norm", inputs)
            results.convolution(f"stages.{stage}.reduction", width, inputs, 2, bias=True)
            if not stage:
                results.layer_norm(f"stages.{stage}.norm", width)
            for index in range(depth):
                path = f"stages.{stage}.blocks.{index}"
                results.convolution(f"{path}.depthwise", width, 1, 7, bias=True)
                results.layer_norm(f"{path}.norm", width)
                results.linear(f"{path}.linear1", 4 * width, width)
                results.linear(f"{path}.linear2", width, 4 * width)
                results.scale(f"{path}.scale", width)
            inputs = width
        results.layer_norm("norm", inputs)
        results.linear("classifier", self.classes, inputs)
        return results


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """A small network with every kind of layer in it, or the whole one, and a batch."""
    spec = Spec() if full else Spec(classes=4, widths=(4, 6), depths=(2, 1))
    return spec, probe_batch(spec, 12, rng)
