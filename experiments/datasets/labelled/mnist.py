"""MNIST and data in its form: four idx files, or gzip, or `mnist.npz` (LeCun et al., 1998)."""

from __future__ import annotations

import gzip
import math
import zipfile
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.files import reading, refused
from experiments.datasets.labelled import checks
from experiments.datasets.labelled.raw import Pictures, digest_of, of_arrays
from tracking.errors import ErrorCode

LOOKS_FOR = "MNIST (train-images-idx3-ubyte[.gz], … or mnist.npz)"
PARTS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
UINT8 = 0x08
NUMERALS = True


def detect(path: Path) -> bool:
    return _archive(path) is not None or bool(_named(path, PARTS[0]))


def read(path: Path) -> Pictures:
    if archive := _archive(path):
        files, arrays = [archive] * 4, _read_archive(archive)
    else:
        files = [_part(path, name) for name in PARTS]
        arrays = [_read_idx(file) for file in files]
    train, train_labels = _checked(files[0], "train", *arrays[:2])
    test, test_labels = _checked(files[2], "test", *arrays[2:])
    labels = np.concatenate([train_labels, test_labels])
    training = np.arange(len(labels)) < len(train_labels)
    key, names = digest_of(dict.fromkeys(files)), checks.numbered(labels)
    images = [train, test]
    return Pictures("mnist", str(path), key, names, labels, training, lambda: of_arrays(images))


def _archive(path: Path) -> Path | None:
    if path.suffix == ".npz" and path.is_file():
        return path
    return path / "mnist.npz" if (path / "mnist.npz").is_file() else None


def _named(folder: Path, name: str) -> Path | None:
    """Return the file; some copies have a dot instead of a dash, and some are compressed."""
    for spelled in (name, name.replace("-idx", ".idx")):
        for file in (folder / spelled, folder / f"{spelled}.gz"):
            if file.is_file():
                return file
    return None


def _part(folder: Path, name: str) -> Path:
    if file := _named(folder, name):
        return file
    raise refused(
        f"data={folder}",
        f"{name}[.gz] is missing; MNIST has {', '.join(PARTS)}",
        ErrorCode.NOT_FOUND,
    )


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read type and dimensions (bytes 2 and 3), sizes as big-endian integers, then the values."""
    is_packed = path.suffix == ".gz"
    with (
        reading(path, "idx file of bytes"),
        cast(IO[bytes], gzip.open(path) if is_packed else path.open("rb")) as file,
    ):
        begin = file.read(4)
        if len(begin) < 4 or begin[:3] != bytes([0, 0, UINT8]) or begin[3] not in (1, 3):
            raise ValueError(f"it begins with {begin.hex(' ') or 'nothing'}")
        sizes = [int(size) for size in np.frombuffer(file.read(4 * begin[3]), ">u4")]
        count = math.prod(sizes)
        if is_packed:
            checks.check_unpacked(path, file.tell() + count)
            values = np.frombuffer(file.read(count + 1), np.uint8)
        else:
            values = np.memmap(path, np.uint8, "r", file.tell())
        if len(sizes) != begin[3] or len(values) != count:
            shape = " × ".join(map(str, sizes))
            raise ValueError(f"it has {len(values):,} bytes for {shape} values")
        return values.reshape(sizes)


def _read_archive(path: Path) -> list[NDArray[Any]]:
    with (
        reading(path, f"MNIST archive with {', '.join(ARRAYS)}"),
        zipfile.ZipFile(path) as archive,
    ):
        for name in ARRAYS:
            member = archive.getinfo(f"{name}.npy")
            checks.check_unpacked(path, member.file_size)
            with archive.open(member) as file:
                np.lib.format.read_magic(file)
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                if math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
                    raise ValueError(f"{member.filename} is cut off or too long")
        with np.load(path, allow_pickle=False) as arrays:
            return [arrays[name] for name in ARRAYS]


def _checked(
    path: Path, part: str, images: NDArray[Any], labels: NDArray[Any]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise refused(
            path,
            f"images and labels do not belong together: images {images.shape}, labels "
            f"{labels.shape}",
            ErrorCode.CONFLICT,
        )
    return checks.pixels(path, images, f"x_{part}"), checks.labels(path, labels, len(images))
