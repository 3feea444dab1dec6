"""Sizes of ResNet-18. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

from models.resnets.sizes import ResNetSpec, probe_of


@dataclass(frozen=True)
class Spec(ResNetSpec):
    """ResNet-18 of the paper's table 1."""

    blocks: tuple[int, int, int, int] = (2, 2, 2, 2)
    bottleneck: bool = False


probe = probe_of(Spec)
