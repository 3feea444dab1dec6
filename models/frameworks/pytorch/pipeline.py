"""torch.utils.data and torchvision's decoders over images on disk, also under Keras."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms.v2.functional import resize, rgb_to_grayscale

from models.contract import Batch, ImageFiles, ModelError


class _Wanted(NamedTuple):
    """One picture of an epoch: all that a worker, which outlives epochs, has to be told of it."""

    row: int
    file: str
    orientation: int
    shift: tuple[int, int]
    mirrored: bool
    label: int


class Reader:
    """One loader a training: its worker processes are started once, and told batch by batch what to read.

    channels_last: how a batch lies in memory. Its shape is (n, height, width, channels), as everywhere in the contract.
    """

    def __init__(
        self, files: ImageFiles, workers: int, device: str, *, channels_last: bool
    ) -> None:
        self._order = _Order()
        self._pictures = _Pictures(files)
        self._weights = torch.ones(files.batch_size)
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._loader = DataLoader(
            self._pictures,
            batch_sampler=self._order,
            num_workers=workers,
            collate_fn=self._collated,
            pin_memory=device == "cuda",
            persistent_workers=workers > 0,
            worker_init_fn=_end_with_parent,
        )

    def epoch(self, files: ImageFiles) -> Iterator[Batch]:
        """Whole batches of tensors in host memory. Raises ModelError naming the first file that cannot be decoded."""
        self._order.batches = batches = _batches(files)
        read = iter(self._loader)
        for wanted in batches:
            try:
                images, labels = next(read)
            except RuntimeError:
                self._name_damaged(wanted)
                raise
            yield Batch((images,), labels, self._weights, even=True)

    def _collated(self, pictures: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        images, labels = zip(*pictures, strict=True)
        stacked = torch.empty((len(images), *images[0].shape), memory_format=self._layout)
        return torch.stack(images, out=stacked).permute(0, 2, 3, 1), torch.tensor(
            labels, dtype=torch.int32
        )

    def _name_damaged(self, batch: list[_Wanted]) -> None:
        for wanted in batch:
            try:
                self._pictures[wanted]
            except RuntimeError as error:
                reason = (str(error).splitlines() or [""])[0]
                raise ModelError(
                    f"{wanted.file}: cannot be decoded by torchvision: {reason}; mend or remove it"
                ) from None


def _end_with_parent(_: int) -> None:
    """Linux: PyTorch's workers look for their parent now and then; one that is halted, as while a cell waits, never would."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class _Order:
    """The loader's sampler: what each epoch sets."""

    def __init__(self) -> None:
        self.batches: list[list[_Wanted]] = []

    def __iter__(self) -> Iterator[list[_Wanted]]:
        return iter(self.batches)


class _Pictures(Dataset[tuple[Tensor, int]]):  # type: ignore[misc]
    """One picture at a time, (channels, height, width), moved and normalised; files are opened in the worker that reads them."""

    def __init__(self, files: ImageFiles) -> None:
        stored = np.load(files.images, mmap_mode="r")
        self._shape, self._offset, self._bytes = (
            stored.shape[1:],
            stored.offset,
            stored.offset + stored.nbytes,
        )
        self._images, self._pad = files.images, files.pad
        self._mean, self._deviation = (
            torch.from_numpy(one)[:, None, None] for one in (files.mean, files.deviation)
        )
        self._stored: Tensor | None = None

    def __getitem__(self, wanted: _Wanted) -> tuple[Tensor, int]:
        image = self._decoded(wanted) if wanted.file else self._prepared(wanted.row)
        pad, side, (top, left) = self._pad, self._shape[0], wanted.shift
        if (top, left) != (pad, pad):
            image = functional.pad(image, (pad, pad, pad, pad))[
                :, top : top + side, left : left + side
            ]
        if wanted.mirrored:
            image = image.flip(2)
        return (image.float() / 255 - self._mean) / self._deviation, wanted.label

    def _prepared(self, row: int) -> Tensor:
        if self._stored is None:
            self._stored = torch.from_file(
                self._images, shared=False, size=self._bytes, dtype=torch.uint8
            )
        size = int(np.prod(self._shape))
        begin = self._offset + row * size
        return self._stored[begin : begin + size].view(self._shape).permute(2, 0, 1)

    def _decoded(self, wanted: _Wanted) -> Tensor:
        image = _upright(
            decode_image(read_file(wanted.file), ImageReadMode.RGB), wanted.orientation
        )
        image = resize(image, list(self._shape[:2]), antialias=True)
        return rgb_to_grayscale(image.float()) if self._shape[2] == 1 else image


def _upright(image: Tensor, orientation: int) -> Tensor:
    """EXIF's orientations: from 5 on rows and columns are exchanged."""
    if orientation >= 5:
        image = image.transpose(1, 2)
    flipped = [
        axis for axis, those in ((2, (2, 3, 6, 7)), (1, (3, 4, 7, 8))) if orientation in those
    ]
    return image.flip(flipped) if flipped else image


def _batches(files: ImageFiles) -> list[list[_Wanted]]:
    columns = (
        files.rows,
        map(os.fsdecode, files.files),
        files.orientations,
        files.shifts,
        files.mirrored,
        files.labels,
    )
    wanted = [
        _Wanted(
            int(row),
            file,
            int(orientation),
            (int(shift[0]), int(shift[1])),
            bool(mirrored),
            int(label),
        )
        for row, file, orientation, shift, mirrored, label in zip(*columns, strict=True)
    ]
    size = files.batch_size
    return [wanted[first : first + size] for first in range(0, len(wanted) - size + 1, size)]
