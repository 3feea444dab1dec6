"""Sizes and layers of Inception-V3 (Szegedy et al., 2016), no auxiliary head. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from models.layers.images import MirroredSpec, Size, pair

EPSILON = 1e-3
MAX, AVERAGE = "max", "average"
ROW, COLUMN = (1, 7), (7, 1)
# From normalised by ImageNet's means and deviations to (image - 0.5) / 0.5, by channel; TensorFlow
# would read a tuple of floats as float32 under any policy.
SCALES = np.array((0.229, 0.224, 0.225)) / 0.5
OFFSETS = (np.array((0.485, 0.456, 0.406)) - 0.5) / 0.5


class Unit(NamedTuple):
    """Convolution, BatchNorm and ReLU; padded to keep the size unless it strides or is `cut`."""

    name: str
    channels: int
    size: Size
    strides: int = 1
    cut: bool = False


class Branch(NamedTuple):
    """Units one after the other, behind a pooling if there is one; the `fork` ends it in two."""

    units: tuple[Unit, ...] = ()
    pooling: str = ""
    fork: tuple[Unit, ...] = ()


# None pools.
STEM = (
    Unit("Conv2d_1a_3x3", 32, 3, 2),
    Unit("Conv2d_2a_3x3", 32, 3, cut=True),
    Unit("Conv2d_2b_3x3", 64, 3),
    None,
    Unit("Conv2d_3b_1x1", 80, 1),
    Unit("Conv2d_4a_3x3", 192, 3, cut=True),
    None,
)
DOUBLE = (Unit("branch3x3dbl_1", 64, 1), Unit("branch3x3dbl_2", 96, 3))


def _a(pooled: int) -> tuple[Branch, ...]:
    """Return figure 5: 35 × 35."""
    return (
        Branch((Unit("branch1x1", 64, 1),)),
        Branch((Unit("branch5x5_1", 48, 1), Unit("branch5x5_2", 64, 5))),
        Branch((*DOUBLE, Unit("branch3x3dbl_3", 96, 3))),
        Branch((Unit("branch_pool", pooled, 1),), AVERAGE),
    )


# Figure 10: to 17 × 17.
B = (
    Branch((Unit("branch3x3", 384, 3, 2),)),
    Branch((*DOUBLE, Unit("branch3x3dbl_3", 96, 3, 2))),
    Branch(pooling=MAX),
)


def _c(width: int) -> tuple[Branch, ...]:
    """Return figure 6: 17 × 17, 7 × 7 as 1 × 7 and 7 × 1."""
    seven = (Unit("branch7x7_1", width, 1), Unit("branch7x7_2", width, ROW))
    twice = (
        Unit("branch7x7dbl_1", width, 1),
        Unit("branch7x7dbl_2", width, COLUMN),
        Unit("branch7x7dbl_3", width, ROW),
        Unit("branch7x7dbl_4", width, COLUMN),
        Unit("branch7x7dbl_5", 192, ROW),
    )
    return (
        Branch((Unit("branch1x1", 192, 1),)),
        Branch((*seven, Unit("branch7x7_3", 192, COLUMN))),
        Branch(twice),
        Branch((Unit("branch_pool", 192, 1),), AVERAGE),
    )


SEVEN = (
    Unit("branch7x7x3_1", 192, 1),
    Unit("branch7x7x3_2", 192, ROW),
    Unit("branch7x7x3_3", 192, COLUMN),
    Unit("branch7x7x3_4", 192, 3, 2),
)
# To 8 × 8.
D = (
    Branch((Unit("branch3x3_1", 192, 1), Unit("branch3x3_2", 320, 3, 2))),
    Branch(SEVEN),
    Branch(pooling=MAX),
)


# Figure 7: 8 × 8, 3 × 3 as 1 × 3 next to 3 × 1.
E = (
    Branch((Unit("branch1x1", 320, 1),)),
    Branch(
        (Unit("branch3x3_1", 384, 1),),
        fork=(Unit("branch3x3_2a", 384, (1, 3)), Unit("branch3x3_2b", 384, (3, 1))),
    ),
    Branch(
        (Unit("branch3x3dbl_1", 448, 1), Unit("branch3x3dbl_2", 384, 3)),
        fork=(Unit("branch3x3dbl_3a", 384, (1, 3)), Unit("branch3x3dbl_3b", 384, (3, 1))),
    ),
    Branch((Unit("branch_pool", 192, 1),), AVERAGE),
)
MIXED = {
    "Mixed_5b": _a(32),
    "Mixed_5c": _a(64),
    "Mixed_5d": _a(64),
    "Mixed_6a": B,
    "Mixed_6b": _c(128),
    "Mixed_6c": _c(160),
    "Mixed_6d": _c(160),
    "Mixed_6e": _c(192),
    "Mixed_7a": D,
    "Mixed_7b": E,
    "Mixed_7c": E,
}


@dataclass(frozen=True)
class Spec(MirroredSpec):
    """Sizes of Inception-V3.

    Attributes:
        narrower: Divisor of each number of channels.
        dropout: Rate before the classifier.
        transform_input: Whether images normalised by ImageNet's values are brought to the range
            that torchvision's checkpoints were trained with.
    """

    narrower: int = 1
    dropout: float = 0.5
    transform_input: bool = False

    least_side = 75
    small: ClassVar = {"classes": 5, "narrower": 8, "transform_input": True}
    probe_side = 107

    def last_norm(self, side: int) -> int:
        """Return the pixels a side that the last BatchNorm gets of an image.

        Nothing is padded before the first mixed layer: 299 become 8.

        Args:
            side: Height and width of an image, in pixels.
        """
        return (side - 43) // 32

    def network(self, x: Any, nn: Any) -> Any:
        if self.transform_input:
            x = nn.rescale(x, SCALES, OFFSETS)
        for unit in STEM:
            x = self._unit(x, nn, unit, "") if unit else nn.max_pool(x, 3, strides=2)
        for name, branches in MIXED.items():
            parts = [part for branch in branches for part in self._branch(x, nn, branch, name)]
            x = nn.concatenate(*parts)
        x = nn.dropout(nn.global_average(x), self.dropout, "dropout")
        return nn.linear(x, self.classes, "fc")

    def _branch(self, x: Any, nn: Any, branch: Branch, name: str) -> list[Any]:
        if branch.pooling == MAX:
            x = nn.max_pool(x, 3, strides=2)
        if branch.pooling == AVERAGE:
            x = nn.average_pool(x, 3, strides=1, padding=1)
        for unit in branch.units:
            x = self._unit(x, nn, unit, f"{name}.")
        return [self._unit(x, nn, unit, f"{name}.") for unit in branch.fork] or [x]

    def _unit(self, x: Any, nn: Any, unit: Unit, prefix: str) -> Any:
        height, width = pair(unit.size)
        is_cut = unit.cut or unit.strides > 1
        padding = (0, 0) if is_cut else (height // 2, width // 2)
        filters, path = unit.channels // self.narrower, f"{prefix}{unit.name}"
        options = {"strides": unit.strides, "padding": padding}
        x = nn.convolution(x, filters, unit.size, f"{path}.conv", **options)
        return nn.relu(nn.norm(x, f"{path}.bn", epsilon=EPSILON))


def checkpoint_name(name: str) -> str | None:
    """Return the name of an array here.

    Args:
        name: In torchvision's published file.

    Returns:
        None for the auxiliary head.
    """
    return None if name.startswith("AuxLogits.") else name
