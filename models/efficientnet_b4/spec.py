"""Sizes of EfficientNet-B4 and what is expected of them. NumPy only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from models.contract import Batch
from models.layers.images import ImageSpec, Shapes, probe_batch

# Of B0, the paper's table 1: expansion, kernel, strides of the first, input channels, output channels, units.
STAGES = (
    *((1, 3, 1, 32, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 2, 24, 40, 2), (6, 3, 2, 40, 80, 3)),
    *((6, 5, 1, 80, 112, 3), (6, 5, 2, 112, 192, 4), (6, 3, 1, 192, 320, 1)),
)


class Unit(NamedTuple):
    """One mobile inverted residual with squeeze and excitation. `drop`: rate at which training leaves it out for an image."""

    path: str
    inputs: int
    hidden: int
    squeezed: int
    outputs: int
    kernel: int
    strides: int
    drop: float

    @property
    def depthwise(self) -> int:
        """Which part of the unit the depthwise convolution is."""
        return int(self.hidden != self.inputs)


@dataclass(frozen=True)
class Spec(ImageSpec):
    """width, depth: B4's factors on B0's channels and units. stochastic_depth: `drop` of a unit after the last."""

    width: float = 1.4
    depth: float = 1.8
    dropout: float = 0.4
    stochastic_depth: float = 0.2

    @property
    def stem(self) -> int:
        return rounded(STAGES[0][3] * self.width)

    @property
    def last(self) -> int:
        return 4 * rounded(STAGES[-1][4] * self.width)

    def units(self) -> Iterator[Unit]:
        """Every MBConv block, from the image on."""
        counts = [ceil(count * self.depth) for *_, count in STAGES]
        done = 0
        for stage, (expansion, kernel, strides, inputs, outputs, _) in enumerate(STAGES):
            inputs, outputs = rounded(inputs * self.width), rounded(outputs * self.width)
            for number in range(counts[stage]):
                path, drop = (
                    f"features.{stage + 1}.{number}",
                    self.stochastic_depth * done / sum(counts),
                )
                hidden, squeezed = rounded(inputs * expansion), max(1, inputs // 4)
                yield Unit(
                    path, inputs, hidden, squeezed, outputs, kernel, 1 if number else strides, drop
                )
                inputs, done = outputs, done + 1

    def shapes(self) -> Shapes:
        found = Shapes()
        found.convolution("features.0.0", self.stem, self.channels, 3)
        found.norm("features.0.1", self.stem)
        outputs = self.stem
        for unit in self.units():
            path, part, outputs = f"{unit.path}.block", unit.depthwise, unit.outputs
            if part:
                found.convolution(f"{path}.0.0", unit.hidden, unit.inputs, 1)
                found.norm(f"{path}.0.1", unit.hidden)
            found.convolution(f"{path}.{part}.0", unit.hidden, 1, unit.kernel)
            found.norm(f"{path}.{part}.1", unit.hidden)
            found.convolution(f"{path}.{part + 1}.fc1", unit.squeezed, unit.hidden, 1, bias=True)
            found.convolution(f"{path}.{part + 1}.fc2", unit.hidden, unit.squeezed, 1, bias=True)
            found.convolution(f"{path}.{part + 2}.0", outputs, unit.hidden, 1)
            found.norm(f"{path}.{part + 2}.1", outputs)
        last = f"features.{len(STAGES) + 1}"
        found.convolution(f"{last}.0", self.last, outputs, 1)
        found.norm(f"{last}.1", self.last)
        found.linear("classifier.1", self.classes, self.last)
        return found


def rounded(channels: float) -> int:
    """To a multiple of 8, and never by more than a tenth down (Sandler et al., 2018, in the authors' code)."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """A narrow and short version, or all of it, and a batch of small images for the parity gate."""
    spec = Spec() if full else Spec(5, 0.25, 0.6)
    return spec, probe_batch(spec, 64, rng)
