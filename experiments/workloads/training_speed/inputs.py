"""Inputs of networks: images of one size, or sequences of fixed and of varying lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.contract import Batch
from models.definition import ModelDefinition
from models.layers import images
from models.layers.images import ImageSpec

BUCKETS = 4
SIDES = {"paper": 224, "tiny": 32}
CLASSES = {"paper": 1_000, "tiny": 10}


def sizes(module: ModelDefinition, size: str, ctc: str, lstm: str) -> Any:
    """Return the network's sizes, as its `build` takes them."""
    if module.takes_images:
        return module.Spec(classes=CLASSES[size])
    return module.sized(size, ctc=ctc, lstm=lstm)


def side(spec: ImageSpec, size: str) -> int:
    """Return the side of the square images, in pixels."""
    return spec.only_side or max(SIDES[size], spec.least_side)


def batches(
    module: ModelDefinition,
    spec: Any,
    size: str,
    *,
    rows: int,
    varying: bool,
    rng: np.random.Generator,
) -> list[Batch]:
    """Return the batches that a training repeats.

    Two batches of each bucket of lengths, shuffled; or two of one length.

    Args:
        module: Definition of the model.
        spec: Its sizes.
        size: `paper` or `tiny`.
        rows: Examples of a batch.
        varying: Whether lengths vary.
        rng: Generator.
    """
    if module.takes_images:
        return [images.batch(spec, side(spec, size), rng, rows) for _ in range(2)]
    lengths = np.sort(module.lengths(size, max(64, 8 * rows), rng))
    buckets = [np.full(rows, round(float(np.median(lengths))))]
    if varying:
        buckets = np.array_split(lengths, BUCKETS)
    # always with the longest of a bucket: all its batches have one shape
    made = [
        module.batch(spec, np.append(rng.choice(bucket, rows - 1), bucket.max()), rng)
        for bucket in buckets
        for _ in range(2)
    ]
    return [made[position] for position in rng.permutation(len(made))]
