"""Sizes of ResNet-50. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

from models.resnets.sizes import ResNetSpec, probe_of


@dataclass(frozen=True)
class Spec(ResNetSpec):
    """ResNet-50 of the paper's table 1."""

    blocks: tuple[int, int, int, int] = (3, 4, 6, 3)
    bottleneck: bool = True


probe = probe_of(Spec)
