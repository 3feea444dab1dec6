"""Checks of pixels, labels and names of classes in foreign files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.files import is_text, refused
from tracking.errors import ErrorCode

# A compressed file may unpack to this many bytes, or to this many times its size if that is more.
# MNIST's files unpack to five times.
FREELY_UNPACKED_BYTES = 64 << 20
MAX_UNPACKED_RATIO = 100
# Limit for data that name no classes. ImageNet has as many.
MAX_CLASSES = 1_000
LONGEST_NAME = 255


def check_unpacked(path: Path, unpacked_bytes: int) -> None:
    """Raise UsageError if a compressed file promises more than one of pictures would."""
    size = path.stat().st_size
    if unpacked_bytes > max(FREELY_UNPACKED_BYTES, MAX_UNPACKED_RATIO * size):
        raise refused(
            path,
            f"its header promises {unpacked_bytes:,} bytes in a file of {size:,}; at most "
            f"{MAX_UNPACKED_RATIO} times its size is unpacked; if right, store it uncompressed",
            ErrorCode.TOO_LARGE,
        )


def pixels(path: Path, values: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Return uint8 of the same shape: integers 0 … 255, or floats 0 … 1 times 255, rounded."""
    if not all(values.shape):
        sizes = " × ".join(map(str, values.shape))
        raise refused(path, f"{name} holds nothing: its sizes are {sizes}", ErrorCode.TOO_FEW)
    if values.dtype == np.uint8:
        return values.view(np.uint8)
    is_number, is_float = values.dtype.kind in "uif", values.dtype.kind == "f"
    # NaN compares false with both.
    if not (is_number and values.min() >= 0 and values.max() <= (1 if is_float else 255)):
        span = f" from {values.min():g} to {values.max():g}" if is_number else ""
        raise refused(
            path,
            f"{name} holds {values.dtype}{span}: write pixels as integers 0 … 255 or floats 0 … 1",
            ErrorCode.INVALID_VALUE,
        )
    scaled: NDArray[Any] = np.rint(values * np.float64(255)) if is_float else values
    return scaled.astype(np.uint8)


def labels(path: Path, values: object, pictures: int) -> NDArray[np.int64]:
    """Return int64 (pictures,), from 0 to MAX_CLASSES - 1, of a list of integers or an array."""
    if isinstance(values, list) and all(type(label) is int for label in values):
        values = np.array(values, object)
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "uifO":
        raise refused(path, "has no list of labels: one whole number for each picture")
    if len(values) != pictures:
        raise refused(path, f"{pictures} images, but {len(values)} labels", ErrorCode.CONFLICT)
    with np.errstate(invalid="ignore"):  # infinity % 1
        is_valid = (values >= 0) & (values < MAX_CLASSES) & (values % 1 == 0)
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        raise refused(
            path,
            f"label {values[row]} of picture {row + 1}; a label is a whole number from 0 to "
            f"{MAX_CLASSES - 1}",
            ErrorCode.INVALID_VALUE,
        )
    return values.astype(np.int64)


def numbered(numbers: NDArray[np.int64]) -> tuple[str, ...]:
    return tuple(map(str, range(int(numbers.max()) + 1)))


def check_names(path: Path, names: Sequence[str]) -> None:
    """Raise UsageError for a class whose name cannot be written into a table or a terminal."""
    counts = Counter(names)
    for name in names:
        if not name or len(name) > LONGEST_NAME or not is_text(name) or counts[name] > 1:
            raise refused(
                path,
                f"{counts[name]} classes are called {name[:40]!r}; a name is used once and has 1 "
                f"to {LONGEST_NAME} characters of UTF-8, no control characters",
                ErrorCode.INVALID_VALUE,
            )
