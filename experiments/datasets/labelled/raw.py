"""Common form of labelled pictures, which every reader of a format returns."""

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
    """Pictures with labels, as they were read from one data set.

    key: equal for equal content.
    labels, training: one entry for each picture.
    pictures: called once; every picture in order, or the reason why it cannot be read.
    files: the file of each picture, for data sets that have one for each.
    folders_left_out: folders that are not read, each with the reason.
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
    """Yield the pictures of arrays, in their order.

    Args:
        arrays: uint8 (n, height, width) in grey, or (n, height, width, 3) in RGB.
    """
    for array in arrays:
        yield from (Image.fromarray(picture) for picture in array)


def held_out(labels: Sequence[int] | NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return which rows are for training: 15 % of every class are held out, always the same."""
    numbers, training = np.asarray(labels), np.ones(len(labels), bool)
    rng = np.random.default_rng(0)
    for number in np.unique(numbers):
        rows = np.flatnonzero(numbers == number)
        training[rng.permutation(rows)[: max(1, round(VALIDATION_SHARE * len(rows)))]] = False
    return training


def digest_of(paths: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        total.update(path.name.encode())
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
