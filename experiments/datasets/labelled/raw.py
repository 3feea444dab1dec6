"""The common form into which every reader of image formats puts what it read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.images import Image

VALIDATION_SHARE = 0.15


@dataclass(frozen=True)
class Pictures:
    """pictures: called once, every picture in order, or the reason why it cannot be read. labels, training: one entry each.

    key: equal where the content is. files: which each picture is read from, for data sets that keep one in each.
    folders_left_out: those that are not read, each with the reason.
    """

    name: str
    source: str
    key: str
    classes: tuple[str, ...]
    labels: Sequence[int] | NDArray[np.integer]
    training: Sequence[bool] | NDArray[np.bool_]
    pictures: Callable[[], Iterable[Image.Image | str]]
    files: Sequence[Path] = ()
    folders_left_out: Sequence[str] = ()


def of_arrays(arrays: Iterable[NDArray[np.uint8]]) -> Iterable[Image.Image]:
    """Pictures of uint8 arrays (n, height, width) or (n, height, width, 3)."""
    for array in arrays:
        yield from (Image.fromarray(picture) for picture in array)


def held_out(labels: Sequence[int] | NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which rows are for training, where the data set does not say: of every class 15 % are held out, always the same."""
    numbers, training = np.asarray(labels), np.ones(len(labels), bool)
    rng = np.random.default_rng(0)
    for number in np.unique(numbers):
        rows = np.flatnonzero(numbers == number)
        training[rng.permutation(rows)[: max(1, round(VALIDATION_SHARE * len(rows)))]] = False
    return training


def digest_of(paths: Iterable[Path]) -> str:
    """SHA-256 over names and contents of files."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.name.encode())
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
