"""Batches of labelled images: what is read in which order, how each picture is shifted and mirrored, drawn once for everyone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.labelled.data import Labelled
from models.contract import Batch, ImageFiles

PAD = 4


def files(
    data: Labelled,
    rows: NDArray[np.int64],
    batch_size: int,
    augmentation: str = "none",
    rng: np.random.Generator | None = None,
) -> ImageFiles:
    """What an epoch over these rows reads. `crop`: a window of the same size out of four black pixels more on every side.

    The standard augmentation of CIFAR-10 (He et al., 2016, section 4.2); a mirrored digit is none, so mirroring is asked for.
    """
    shifts = np.full((len(rows), 2), PAD)
    mirrored = np.zeros(len(rows), bool)
    if augmentation != "none":
        assert rng is not None
        shifts = rng.integers(0, 2 * PAD + 1, (len(rows), 2))
        mirrored = rng.random(len(rows)) < 0.5 if augmentation == "crop+mirror" else mirrored
    return ImageFiles(
        images=str(data.folder / "images.npy"),
        labels=np.ascontiguousarray(data.labels[rows]),
        files=data.files[rows],
        orientations=data.orientations[rows],
        rows=rows,
        shifts=shifts,
        mirrored=mirrored,
        pad=PAD,
        mean=data.mean,
        deviation=data.deviation,
        batch_size=batch_size,
    )


def read(data: Labelled, wanted: ImageFiles) -> Iterator[Batch]:
    """The batches in NumPy; the last is filled up with rows of weight zero, so that all have one shape."""
    for first in range(0, len(wanted.rows), wanted.batch_size):
        part = slice(first, first + wanted.batch_size)
        images = data.images[wanted.rows[part]]
        moved = _moved(images, wanted.shifts[part], wanted.mirrored[part], wanted.pad)
        pixels = (moved.astype(np.float32) / np.float32(255) - wanted.mean) / wanted.deviation
        count, missing = len(images), wanted.batch_size - len(images)
        weights = np.concatenate([np.ones(count, np.float32), np.zeros(missing, np.float32)])
        yield Batch((_filled(pixels, missing),), _filled(wanted.labels[part], missing), weights)


def _moved(
    images: NDArray[np.uint8], shifts: NDArray[np.int64], mirrored: NDArray[np.bool_], pad: int
) -> NDArray[np.uint8]:
    if (shifts == pad).all() and not mirrored.any():
        return images
    n, side = images.shape[:2]
    padded = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    along = np.arange(side)
    across = np.where(mirrored[:, None], along[::-1], along)
    found: NDArray[np.uint8] = padded[
        np.arange(n)[:, None, None],
        (shifts[:, :1] + along)[:, :, None],
        (shifts[:, 1:] + across)[:, None, :],
    ]
    return found


def _filled(array: NDArray, missing: int) -> NDArray:  # type: ignore[type-arg]
    return (
        np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])
        if missing
        else array
    )
