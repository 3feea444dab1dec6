"""Batches of labelled images: order, shifts and mirroring, drawn once for every framework."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from experiments.datasets import filled
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
    """Return what an epoch over these rows reads.

    `crop` takes a window of the same size out of four more black pixels on every side, the standard
    augmentation of CIFAR-10 (He et al., 2016, section 4.2). Mirroring is a separate request,
    because a mirrored digit is no digit.
    """
    shifts = np.full((len(rows), 2), PAD)
    mirrored = np.zeros(len(rows), bool)
    if augmentation != "none":
        assert rng is not None
        shifts = rng.integers(0, 2 * PAD + 1, (len(rows), 2))
        if augmentation == "crop+mirror":
            mirrored = rng.random(len(rows)) < 0.5
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


def read(data: Labelled, epoch: ImageFiles) -> Iterator[Batch]:
    """Yield batches in NumPy; the last is filled up to the same shape with rows of weight zero."""
    for first in range(0, len(epoch.rows), epoch.batch_size):
        part = slice(first, first + epoch.batch_size)
        images = _moved(
            data.images[epoch.rows[part]], epoch.shifts[part], epoch.mirrored[part], epoch.pad
        )
        pixels = (images.astype(np.float32) / np.float32(255) - epoch.mean) / epoch.deviation
        arrays = (pixels, epoch.labels[part], np.ones(len(images), np.float32))
        pixels, labels, weights = (filled(array, epoch.batch_size) for array in arrays)
        yield Batch((pixels,), labels, weights)


def _moved(
    images: NDArray[np.uint8], shifts: NDArray[np.int64], mirrored: NDArray[np.bool_], pad: int
) -> NDArray[np.uint8]:
    if (shifts == pad).all() and not mirrored.any():
        return images
    n, side = images.shape[:2]
    padded = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    along = np.arange(side)
    across = np.where(mirrored[:, None], along[::-1], along)
    moved: NDArray[np.uint8] = padded[
        np.arange(n)[:, None, None],
        (shifts[:, :1] + along)[:, :, None],
        (shifts[:, 1:] + across)[:, None, :],
    ]
    return moved
