"""Sizes of a ResNet. NumPy only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from models.contract import Batch
from models.layers.images import ImageSpec, Shapes, probe_batch

STEM = 64


class Unit(NamedTuple):
    """One residual unit. `convolutions`: (outputs, size, strides) in order; `projected`: whether the shortcut has its own."""

    path: str
    inputs: int
    outputs: int
    strides: int
    convolutions: tuple[tuple[int, int, int], ...]
    projected: bool


@dataclass(frozen=True)
class ResNetSpec(ImageSpec):
    """blocks: residual units a stage (table 1); bottleneck: 1×1, 3×3, 1×1 instead of 3×3, 3×3, strides on the 3×3."""

    blocks: tuple[int, int, int, int] = (2, 2, 2, 2)
    bottleneck: bool = False

    def units(self) -> Iterator[Unit]:
        """Every residual unit, from the image on."""
        inputs = STEM
        for stage, count in enumerate(self.blocks):
            width = STEM * 2**stage
            outputs = width * (4 if self.bottleneck else 1)
            for number in range(count):
                strides = 2 if stage and not number else 1
                convolutions: tuple[tuple[int, int, int], ...] = (
                    (width, 3, strides),
                    (width, 3, 1),
                )
                if self.bottleneck:
                    convolutions = ((width, 1, 1), (width, 3, strides), (outputs, 1, 1))
                projected = strides > 1 or inputs != outputs
                yield Unit(
                    f"layer{stage + 1}.{number}", inputs, outputs, strides, convolutions, projected
                )
                inputs = outputs

    def shapes(self) -> Shapes:
        found = Shapes()
        found.convolution("conv1", STEM, 3, 7)
        found.norm("bn1", STEM)
        outputs = STEM
        for unit in self.units():
            inputs, outputs = unit.inputs, unit.outputs
            for number, (width, size, _) in enumerate(unit.convolutions, 1):
                found.convolution(f"{unit.path}.conv{number}", width, inputs, size)
                found.norm(f"{unit.path}.bn{number}", width)
                inputs = width
            if unit.projected:
                found.convolution(f"{unit.path}.downsample.0", outputs, unit.inputs, 1)
                found.norm(f"{unit.path}.downsample.1", outputs)
        found.linear("fc", self.classes, outputs)
        return found


def probe_of(sizes: type[ResNetSpec]) -> Callable[..., tuple[ResNetSpec, Batch]]:
    """Return the `probe` of a ResNet: one unit a stage, or all of it, and a batch of small images."""

    def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[ResNetSpec, Batch]:
        spec = sizes() if full else sizes(classes=5, blocks=(1, 1, 1, 1))
        return spec, probe_batch(spec, 64, rng)

    return probe
