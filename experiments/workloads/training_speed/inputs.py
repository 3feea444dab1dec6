"""Random inputs of networks, by their kind: images of one size, or sequences of fixed and of varying lengths."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from experiments.workloads.networks import takes_images
from models.contract import Array, Batch
from models.layers import images
from models.layers.images import ImageSpec

BUCKETS = 4
SIDES = {"paper": 224, "tiny": 32}
CLASSES = {"paper": 1_000, "tiny": 10}


def sizes(module: ModuleType, size: str, ctc: str) -> Any:
    """The network's sizes, as its `build` takes them."""
    if takes_images(module):
        return module.Spec(classes=CLASSES[size])
    return module.sized(size, ctc=ctc)


def side(spec: ImageSpec, size: str) -> int:
    """Of the square images, in pixels."""
    return spec.only_side or max(SIDES[size], spec.least_side)


def batches(module: ModuleType, spec: Any, size: str, *, rows: int, varying: bool, rng: np.random.Generator) -> list[Batch]:
    """What a training goes through, again and again: two batches of each bucket of lengths, shuffled; or two of one length."""
    if takes_images(module):
        return [images.batch(spec, side(spec, size), rng, rows) for _ in range(2)]
    drawn = np.sort(module.lengths(size, max(64, 8 * rows), rng))
    parts = np.array_split(drawn, BUCKETS) if varying else [np.full(rows, round(float(np.median(drawn))))]
    found = [module.batch(spec, _some(part, rows, rng), rng) for part in parts for _ in range(2)]
    return [found[at] for at in rng.permutation(len(found))]


def _some(lengths: Array, rows: int, rng: np.random.Generator) -> Array:
    """So many of a bucket, the longest among them: every batch of a bucket has one shape."""
    return np.append(rng.choice(lengths, rows - 1), lengths.max())
