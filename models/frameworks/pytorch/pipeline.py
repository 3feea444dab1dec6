"""torch.utils.data over images on disk."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from models.contract import Batch, ImageFiles


class _Images(Dataset[tuple[Tensor, int]]):  # type: ignore[misc]
    """One picture at a time, moved and normalised; the file is opened in the worker that reads it."""

    def __init__(self, files: ImageFiles) -> None:
        self._files = files
        self._images: np.ndarray | None = None  # type: ignore[type-arg]
        self._mean, self._deviation = torch.from_numpy(files.mean), torch.from_numpy(files.deviation)

    def __len__(self) -> int:
        return len(self._files.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self._images is None:
            self._images = np.load(self._files.images, mmap_mode="r")
        files, pad = self._files, self._files.pad
        image = torch.from_numpy(np.array(self._images[files.rows[index]]))
        side, (top, left) = image.shape[0], files.shifts[index]
        if (top, left) != (pad, pad):
            image = functional.pad(image, (0, 0, pad, pad, pad, pad))[top : top + side, left : left + side]
        if files.mirrored[index]:
            image = image.flip(1)
        return (image.float() / 255 - self._mean) / self._deviation, int(files.labels[index])


def batches(files: ImageFiles, workers: int, device: str) -> Iterator[Batch]:
    """Batches of tensors in host memory; the adapter moves them, as it does NumPy's."""
    loader = DataLoader(
        _Images(files), batch_size=files.batch_size, num_workers=workers, drop_last=True, pin_memory=device == "cuda"
    )
    weights = np.ones(files.batch_size, np.float32)
    for images, labels in loader:
        yield Batch((images.numpy(),), labels.int().numpy(), weights)
