"""Input pipeline of torch.utils.data and torchvision over images on disk, also under Keras."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms.v2.functional import resize, rgb_to_grayscale

from models.contract import Batch, ErrorCode, ImageFiles, ModelError
from models.devices import CPU

# Of an epoch, for a worker, which outlives epochs: row, file, orientation, shift, mirrored, label.
_Picture = tuple[int, str, int, tuple[int, int], bool, int]


class Reader:
    """Loader of a training, whose worker processes are started once.

    channels_last: the order in memory; the shape is always (n, height, width, channels).
    """

    def __init__(
        self, files: ImageFiles, workers: int, device: str, *, channels_last: bool
    ) -> None:
        self._batches: list[list[_Picture]] = []  # of the epoch
        self._pictures = _Pictures(files)
        self._weights = torch.ones(files.batch_size)
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._loader = DataLoader(
            self._pictures,
            batch_sampler=self._batches,
            num_workers=workers,
            collate_fn=self._collate,
            pin_memory=device != CPU,
            persistent_workers=workers > 0,
            worker_init_fn=_end_with_parent,
        )

    def epoch(self, files: ImageFiles) -> Iterator[Batch]:
        """Yield whole batches in host memory. Raise ModelError naming a damaged file."""
        batches = _batches(files)
        self._batches[:] = batches
        loaded = iter(self._loader)
        for batch in batches:
            try:
                images, labels = next(loaded)
            except RuntimeError:
                self._name_damaged(batch)
                raise
            yield Batch((images,), labels, self._weights, uniform_weights=True)

    def _collate(self, pictures: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        images, labels = zip(*pictures, strict=True)
        stacked = torch.empty((len(images), *images[0].shape), memory_format=self._layout)
        torch.stack(images, out=stacked)
        return stacked.permute(0, 2, 3, 1), torch.tensor(labels, dtype=torch.int32)

    def _name_damaged(self, batch: list[_Picture]) -> None:
        for picture in batch:
            try:
                self._pictures[picture]
            except RuntimeError as error:
                reason = (str(error).splitlines() or [""])[0]
                text = f"{picture[1]}: cannot be decoded by torchvision: {reason}"
                raise ModelError(ErrorCode.UNREADABLE, f"{text}; mend or remove it") from None


def _end_with_parent(_: int) -> None:
    """End with the parent on Linux, also while suspended, when PyTorch's own check does not run."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class _Pictures(Dataset[tuple[Tensor, int]]):  # type: ignore[misc]
    """Pictures (channels, height, width), moved and normalised, read in the worker."""

    def __init__(self, files: ImageFiles) -> None:
        stored = np.load(files.images, mmap_mode="r")
        self._shape, self._offset = stored.shape[1:], stored.offset
        self._bytes = stored.offset + stored.nbytes
        self._images, self._pad = files.images, files.pad
        self._mean = torch.from_numpy(files.mean)[:, None, None]
        self._deviation = torch.from_numpy(files.deviation)[:, None, None]
        self._stored: Tensor | None = None

    def __getitem__(self, picture: _Picture) -> tuple[Tensor, int]:
        row, file, orientation, (top, left), is_mirrored, label = picture
        image = self._decode(file, orientation) if file else self._stored_image(row)
        pad, side = self._pad, self._shape[0]
        if (top, left) != (pad, pad):
            padded = functional.pad(image, (pad, pad, pad, pad))
            image = padded[:, top : top + side, left : left + side]
        if is_mirrored:
            image = image.flip(2)
        return (image.float() / 255 - self._mean) / self._deviation, label

    def _stored_image(self, row: int) -> Tensor:
        if self._stored is None:
            self._stored = torch.from_file(
                self._images, shared=False, size=self._bytes, dtype=torch.uint8
            )
        size = prod(self._shape)
        begin = self._offset + row * size
        return self._stored[begin : begin + size].view(self._shape).permute(2, 0, 1)

    def _decode(self, file: str, orientation: int) -> Tensor:
        image = decode_image(read_file(file), ImageReadMode.RGB)
        if orientation >= 5:  # EXIF's: rows and columns are exchanged
            image = image.transpose(1, 2)
        flips = ((2, (2, 3, 6, 7)), (1, (3, 4, 7, 8)))
        axes = [axis for axis, orientations in flips if orientation in orientations]
        image = resize(image.flip(axes), list(self._shape[:2]), antialias=True)
        return rgb_to_grayscale(image.float()) if self._shape[2] == 1 else image


def _batches(files: ImageFiles) -> list[list[_Picture]]:
    columns = (
        files.rows.tolist(),
        map(os.fsdecode, files.files),
        files.orientations.tolist(),
        map(tuple, files.shifts.tolist()),
        files.mirrored.tolist(),
        files.labels.tolist(),
    )
    pictures = list(zip(*columns, strict=True))
    size = files.batch_size
    return [pictures[first : first + size] for first in range(0, len(pictures) - size + 1, size)]
