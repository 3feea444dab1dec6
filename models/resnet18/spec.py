"""Sizes of ResNet-18 and what is expected of them. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

from models.layers.images import initial_weights, parameters, probe_batch, shapes
from models.resnets.sizes import ResNetSpec, probe_of


@dataclass(frozen=True)
class Spec(ResNetSpec):
    """ResNet-18 of the paper's table 1."""

    blocks: tuple[int, int, int, int] = (2, 2, 2, 2)
    bottleneck: bool = False


probe = probe_of(Spec)
__all__ = ["Spec", "initial_weights", "parameters", "probe", "probe_batch", "shapes"]
