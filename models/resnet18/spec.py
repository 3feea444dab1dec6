"""Sizes of ResNet-18 and what is expected of them. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.contract import Batch
from models.layers.images import initial_weights, parameters, probe_batch, shapes
from models.resnets.sizes import ResNetSpec


@dataclass(frozen=True)
class Spec(ResNetSpec):
    """ResNet-18 of the paper's table 1."""

    blocks: tuple[int, int, int, int] = (2, 2, 2, 2)
    bottleneck: bool = False


def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
    """One unit a stage, or all of it, and a batch of small images for the parity gate."""
    spec = Spec() if full else Spec(classes=5, blocks=(1, 1, 1, 1))
    return spec, probe_batch(spec, 64, rng)


__all__ = ["Spec", "initial_weights", "parameters", "probe", "shapes"]
