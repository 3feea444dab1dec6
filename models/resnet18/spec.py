"""Sizes of ResNet-18 (He et al., 2016). NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

from models.resnets.sizes import ResNetSpec


@dataclass(frozen=True)
class Spec(ResNetSpec):
    """ResNet-18 of the paper's table 1."""
