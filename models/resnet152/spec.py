"""Sizes of ResNet-152 and what is expected of them. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

from models.layers.images import initial_weights, parameters, probe_batch, shapes
from models.resnets.sizes import ResNetSpec, probe_of


@dataclass(frozen=True)
class Spec(ResNetSpec):
    """ResNet-152 of the paper's table 1."""

    blocks: tuple[int, int, int, int] = (3, 8, 36, 3)
    bottleneck: bool = True


probe = probe_of(Spec)
__all__ = ["Spec", "initial_weights", "parameters", "probe", "probe_batch", "shapes"]
