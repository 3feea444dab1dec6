"""Inputs of networks, by their kind: random images of one size, or sequences, random or read, of fixed and of varying lengths."""

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
    """The network's sizes, as its `build` takes them."""
    if module.takes_images:
        return module.Spec(classes=CLASSES[size])
    return module.sized(size, ctc=ctc, lstm=lstm)


def side(spec: ImageSpec, size: str) -> int:
    """Of the square images, in pixels."""
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
    """What a training goes through, again and again: two batches of each bucket of lengths, shuffled; or two of one length.

    folder: in the cache, of sequences that were read; empty for random inputs.
    """
    if module.takes_images:
        return [images.batch(spec, side(spec, size), rng, rows) for _ in range(2)]
    if folder:
        found = _read(module, spec, Sequences.open(Path(folder)), rows, varying, rng)
    else:
        drawn = np.sort(module.lengths(size, max(64, 8 * rows), rng))
        parts = (
            np.array_split(drawn, BUCKETS)
            if varying
            else [np.full(rows, round(float(np.median(drawn))))]
        )
        found = [
            module.batch(spec, _some(part, rows, rng), rng) for part in parts for _ in range(2)
        ]
    return [found[at] for at in rng.permutation(len(found))]


def _some(lengths: Array, rows: int, rng: np.random.Generator) -> Array:
    """So many of a bucket, the longest among them: every batch of a bucket has one shape."""
    return np.append(rng.choice(lengths, rows - 1), lengths.max())


def _read(
    module: ModelDefinition,
    spec: Any,
    data: Sequences,
    rows: int,
    varying: bool,
    rng: np.random.Generator,
) -> list[Batch]:
    """As random ones; a bucket of too few examples has some of them more than once in a batch."""
    found, longest = [], module.reads(spec).longest
    for bucket in buckets(data.lengths, varying=varying):
        kept = cut(data.lengths[bucket], longest, varying=varying)
        for _ in range(2):
            at = rng.choice(len(bucket), rows, replace=rows > len(bucket))
            parts = [
                (data.padded(part, bucket[at], kept[at, part], width), kept[at, part])
                for part, width in enumerate(kept.max(0))
            ]
            found.append(module.batch_of(spec, rng, *parts))
    return found


def buckets(lengths: Array, *, varying: bool) -> Sequence[Array]:
    """Rows of `lengths` (n, parts) by the length of their first part, of which each bucket has as many; or all rows at once."""
    return np.array_split(np.argsort(lengths[:, 0], kind="stable"), BUCKETS if varying else 1)


def cut(lengths: Array, longest: int | None, *, varying: bool) -> Array:
    """How much is kept of each part, (n, parts): all; of fixed lengths the first part's median, and that share of others."""
    if varying:
        return lengths
    first = np.minimum(lengths[:, :1], round(float(np.median(lengths[:, 0]))))
    kept: Array = np.minimum(
        np.maximum(lengths * first // lengths[:, :1], 1), longest or lengths.max()
    )
    return kept
