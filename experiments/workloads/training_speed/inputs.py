"""Inputs of networks: images of one size, or sequences of fixed and of varying lengths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.datasets.sequences.data import Sequences
from models.contract import Array, Batch
from models.definition import ModelDefinition
from models.layers import images
from models.layers.images import ImageSpec

BUCKETS = 4
SIDES = {"paper": 224, "tiny": 32}
CLASSES = {"paper": 1_000, "tiny": 10}


def sizes(module: ModelDefinition, size: str, ctc: str, lstm: str = "layer") -> Any:
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
    folder: str = "",
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
        folder: Folder in the cache with sequences from files; empty for random inputs.
    """
    if module.takes_images:
        return [images.batch(spec, side(spec, size), rng, rows) for _ in range(2)]
    if folder:
        made = _from_files(module, spec, Sequences.open(Path(folder)), rows, varying, rng)
    else:
        lengths = np.sort(module.lengths(size, max(64, 8 * rows), rng))
        buckets_of_lengths = [np.full(rows, round(float(np.median(lengths))))]
        if varying:
            buckets_of_lengths = np.array_split(lengths, BUCKETS)
        # always with the longest of a bucket: all its batches have one shape
        made = [
            module.batch(spec, np.append(rng.choice(bucket, rows - 1), bucket.max()), rng)
            for bucket in buckets_of_lengths
            for _ in range(2)
        ]
    return [made[position] for position in rng.permutation(len(made))]


def _from_files(
    module: ModelDefinition,
    spec: Any,
    data: Sequences,
    rows: int,
    varying: bool,
    rng: np.random.Generator,
) -> list[Batch]:
    """Return batches of sequences; a bucket of few examples has some of them twice in a batch."""
    made, longest = [], module.reads(spec).longest
    for bucket in buckets(data.lengths, varying=varying):
        lengths = cut(data.lengths[bucket], longest, varying=varying)
        for _ in range(2):
            chosen = rng.choice(len(bucket), rows, replace=rows > len(bucket))
            parts = [
                (
                    data.padded(part, bucket[chosen], lengths[chosen, part], width),
                    lengths[chosen, part],
                )
                for part, width in enumerate(lengths.max(0))
            ]
            made.append(module.batch_of(spec, rng, *parts))
    return made


def buckets(lengths: Array, *, varying: bool) -> Sequence[Array]:
    """Split examples into buckets of similar lengths, whose sizes differ by one at most.

    Args:
        lengths: Lengths of the parts of each example, (n, parts); the first part decides.
        varying: False for a single bucket.

    Returns:
        Rows of `lengths`, for each bucket from the shortest to the longest.
    """
    return np.array_split(np.argsort(lengths[:, 0], kind="stable"), BUCKETS if varying else 1)


def cut(lengths: Array, longest: int | None, *, varying: bool) -> Array:
    """Return the used length of each part, (n, parts).

    Of fixed lengths, that is the median of the first part, and the same share of others.
    """
    if varying:
        return lengths
    first = np.minimum(lengths[:, :1], round(float(np.median(lengths[:, 0]))))
    shares = np.maximum(lengths * first // lengths[:, :1], 1)
    used: Array = np.minimum(shares, longest or lengths.max())
    return used
