"""Sizes of MobileNetV2 and what is expected of them. NumPy only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from models.contract import Batch
from models.layers.images import ImageSpec, Shapes, probe_batch


class Unit(NamedTuple):
    """One inverted residual: a depthwise convolution of `hidden` channels, widened before where they are more than `inputs`."""

    path: str
    inputs: int
    hidden: int
    outputs: int
    strides: int

    @property
    def depthwise(self) -> int:
        """Which part of the unit the depthwise convolution is."""
        return int(self.hidden != self.inputs)


@dataclass(frozen=True)
class Spec(ImageSpec):
    """stages: (expansion, channels, units, strides of the first) as in the paper's table 2."""

    stages: tuple[tuple[int, int, int, int], ...] = (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    )
    dropout: float = 0.2

    @property
    def stem(self) -> int:
        return 32

    @property
    def last(self) -> int:
        return 1280

    def units(self) -> Iterator[Unit]:
        """Every inverted residual block, from the image on."""
        inputs, at = self.stem, 1
        for expansion, outputs, count, strides in self.stages:
            for number in range(count):
                yield Unit(
                    f"features.{at}", inputs, expansion * inputs, outputs, 1 if number else strides
                )
                inputs, at = outputs, at + 1

    def shapes(self) -> Shapes:
        found = Shapes()
        found.convolution("features.0.0", self.stem, self.channels, 3)
        found.norm("features.0.1", self.stem)
        units = list(self.units())
        for unit in units:
            part = unit.depthwise
            if part:
                found.convolution(f"{unit.path}.conv.0.0", unit.hidden, unit.inputs, 1)
                found.norm(f"{unit.path}.conv.0.1", unit.hidden)
            found.convolution(f"{unit.path}.conv.{part}.0", unit.hidden, 1, 3)
            found.norm(f"{unit.path}.conv.{part}.1", unit.hidden)
            found.convolution(f"{unit.path}.conv.{part + 1}", unit.outputs, unit.hidden, 1)
            found.norm(f"{unit.path}.conv.{part + 2}", unit.outputs)
        found.convolution(f"features.{len(units) + 1}.0", self.last, units[-1].outputs, 1)
        found.norm(f"features.{len(units) + 1}.1", self.last)
        found.linear("classifier.1", self.classes, self.last)
        return found


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """A short version with every kind of unit in it, or all of it, and a batch of small images for the parity gate."""
    spec = Spec() if full else Spec(classes=5, stages=((1, 16, 1, 1), (6, 24, 2, 2), (2, 32, 1, 2)))
    return spec, probe_batch(spec, 64, rng)
