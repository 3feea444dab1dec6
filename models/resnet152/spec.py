"""Sizes of ResNet-152 (He et al., 2016). NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

from models.resnet18.spec import Spec as ResNet


@dataclass(frozen=True)
class Spec(ResNet):
    """ResNet-152 of the paper's table 1."""

    blocks: tuple[int, int, int, int] = (3, 8, 36, 3)
    bottleneck: bool = True
