"""Sizes of Inception-V3 and what is expected of them. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from models.contract import Batch
from models.layers.images import ImageSpec, Shapes, Size, pair, probe_batch

EPSILON = 1e-3
POOL, MAX, AVERAGE = "pool", "max", "average"


class Unit(NamedTuple):
    """A convolution, BatchNorm and ReLU; padded to keep the size unless it strides or is `cut`."""

    name: str
    channels: int
    size: Size
    strides: int = 1
    cut: bool = False

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros on both sides of height and width."""
        return (
            (0, 0)
            if self.cut or self.strides > 1
            else (pair(self.size)[0] // 2, pair(self.size)[1] // 2)
        )


class Branch(NamedTuple):
    """Units one after the other, after a pooling where there is one, ending in `fork`s side by side where there are any."""

    units: tuple[Unit, ...] = ()
    pooling: str = ""
    fork: tuple[Unit, ...] = ()


STEM = (
    *(
        Unit("Conv2d_1a_3x3", 32, 3, 2),
        Unit("Conv2d_2a_3x3", 32, 3, cut=True),
        Unit("Conv2d_2b_3x3", 64, 3),
        POOL,
    ),
    *(Unit("Conv2d_3b_1x1", 80, 1), Unit("Conv2d_4a_3x3", 192, 3, cut=True), POOL),
)


def _a(pooled: int) -> tuple[Branch, ...]:
    """Figure 5: 35 × 35."""
    return (
        Branch((Unit("branch1x1", 64, 1),)),
        Branch((Unit("branch5x5_1", 48, 1), Unit("branch5x5_2", 64, 5))),
        Branch(
            (
                Unit("branch3x3dbl_1", 64, 1),
                Unit("branch3x3dbl_2", 96, 3),
                Unit("branch3x3dbl_3", 96, 3),
            )
        ),
        Branch((Unit("branch_pool", pooled, 1),), AVERAGE),
    )


def _b() -> tuple[Branch, ...]:
    """Figure 10: to 17 × 17."""
    return (
        Branch((Unit("branch3x3", 384, 3, 2),)),
        Branch(
            (
                Unit("branch3x3dbl_1", 64, 1),
                Unit("branch3x3dbl_2", 96, 3),
                Unit("branch3x3dbl_3", 96, 3, 2),
            )
        ),
        Branch(pooling=MAX),
    )


def _c(inside: int) -> tuple[Branch, ...]:
    """Figure 6: 17 × 17, 7 × 7 as 1 × 7 and 7 × 1."""
    row, column = (1, 7), (7, 1)
    sizes: tuple[Size, ...] = (1, column, row, column, row)
    twice = zip(sizes, (inside, inside, inside, inside, 192), strict=True)
    return (
        Branch((Unit("branch1x1", 192, 1),)),
        Branch(
            (
                Unit("branch7x7_1", inside, 1),
                Unit("branch7x7_2", inside, row),
                Unit("branch7x7_3", 192, column),
            )
        ),
        Branch(
            tuple(
                Unit(f"branch7x7dbl_{at}", channels, size)
                for at, (size, channels) in enumerate(twice, 1)
            )
        ),
        Branch((Unit("branch_pool", 192, 1),), AVERAGE),
    )


def _d() -> tuple[Branch, ...]:
    """To 8 × 8."""
    seven = (
        Unit("branch7x7x3_1", 192, 1),
        Unit("branch7x7x3_2", 192, (1, 7)),
        Unit("branch7x7x3_3", 192, (7, 1)),
    )
    return (
        Branch((Unit("branch3x3_1", 192, 1), Unit("branch3x3_2", 320, 3, 2))),
        Branch((*seven, Unit("branch7x7x3_4", 192, 3, 2))),
        Branch(pooling=MAX),
    )


def _e() -> tuple[Branch, ...]:
    """Figure 7: 8 × 8, 3 × 3 as 1 × 3 beside 3 × 1."""
    double = (Unit("branch3x3dbl_1", 448, 1), Unit("branch3x3dbl_2", 384, 3))
    return (
        Branch((Unit("branch1x1", 320, 1),)),
        Branch((Unit("branch3x3_1", 384, 1),), fork=_fork("branch3x3_2")),
        Branch(double, fork=_fork("branch3x3dbl_3")),
        Branch((Unit("branch_pool", 192, 1),), AVERAGE),
    )


def _fork(name: str) -> tuple[Unit, ...]:
    return Unit(f"{name}a", 384, (1, 3)), Unit(f"{name}b", 384, (3, 1))


MIXED = {
    **{
        "Mixed_5b": _a(32),
        "Mixed_5c": _a(64),
        "Mixed_5d": _a(64),
        "Mixed_6a": _b(),
        "Mixed_6b": _c(128),
        "Mixed_6c": _c(160),
    },
    **{
        "Mixed_6d": _c(160),
        "Mixed_6e": _c(192),
        "Mixed_7a": _d(),
        "Mixed_7b": _e(),
        "Mixed_7c": _e(),
    },
}


@dataclass(frozen=True)
class Spec(ImageSpec):
    """narrower: what every number of channels is divided by. transform_input: images normalised as torchvision's checkpoints
    were not trained with are brought to the range that they were."""

    narrower: int = 1
    dropout: float = 0.5
    transform_input: bool = False

    least_side: ClassVar[int] = 75

    def last_norm(self, side: int) -> int:
        """It pads nowhere before its first mixed layer: 299 pixels become 8."""
        return (side - 43) // 32

    def shapes(self) -> Shapes:
        found = Shapes()
        channels = self.channels
        for unit in STEM:
            if isinstance(unit, Unit):
                channels = self._add(found, unit.name, unit, channels)
        for name, branches in MIXED.items():
            channels = sum(self._add_branch(found, name, branch, channels) for branch in branches)
        found.linear("fc", self.classes, channels)
        return found

    def width(self, unit: Unit) -> int:
        """Number of output channels of a unit."""
        return unit.channels // self.narrower

    def _add(self, found: Shapes, path: str, unit: Unit, inputs: int) -> int:
        found.convolution(f"{path}.conv", self.width(unit), inputs, unit.size)
        found.norm(f"{path}.bn", self.width(unit))
        return self.width(unit)

    def _add_branch(self, found: Shapes, name: str, branch: Branch, channels: int) -> int:
        for unit in branch.units:
            channels = self._add(found, f"{name}.{unit.name}", unit, channels)
        return (
            sum(self._add(found, f"{name}.{unit.name}", unit, channels) for unit in branch.fork)
            or channels
        )


def checkpoint_name(name: str) -> str | None:
    """torchvision's published file has the auxiliary head, which this network leaves away."""
    return None if name.startswith("AuxLogits.") else name


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """An eighth of the channels, or all, and a batch of small images for the parity gate."""
    spec = Spec() if full else Spec(classes=5, narrower=8, transform_input=True)
    return spec, probe_batch(spec, 107, rng)
