"""MNIST and what is written like it: four idx files, plain or gzip, or one `mnist.npz` (LeCun et al., 1998)."""

from __future__ import annotations

import gzip
import math
import zipfile
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.labelled import checks
from experiments.datasets.labelled.raw import Pictures, digest_of, of_arrays
from tracking.errors import WrongCall

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
    archive = _archive(path)
    files = [archive] if archive else [_part(path, name) for name in PARTS]
    arrays = _of_archive(archive) if archive else [_idx(file) for file in files]
    train, train_labels = _checked(files[0], "train", *arrays[:2])
    test, test_labels = _checked(files[len(files) // 2], "test", *arrays[2:])
    labels = np.concatenate([train_labels, test_labels])
    training = np.arange(len(labels)) < len(train_labels)
    names = checks.numbered(labels)
    return Pictures(
        "mnist",
        str(path),
        digest_of(files),
        names,
        labels,
        training,
        lambda: of_arrays([train, test]),
    )


def _archive(path: Path) -> Path | None:
    if path.suffix == ".npz" and path.is_file():
        return path
    return path / "mnist.npz" if (path / "mnist.npz").is_file() else None


def _named(folder: Path, name: str) -> Path | None:
    """Some copies have a dot where others have a dash, and some are compressed."""
    for spelled in (name, name.replace("-idx", ".idx")):
        for file in (folder / spelled, folder / f"{spelled}.gz"):
            if file.is_file():
                return file
    return None


def _part(folder: Path, name: str) -> Path:
    if found := _named(folder, name):
        return found
    raise WrongCall(f"data={folder}: {name}[.gz] is missing; MNIST has {', '.join(PARTS)}")


def _idx(path: Path) -> NDArray[np.uint8]:
    """Bytes 2 and 3 tell type and dimensions, then the sizes as big-endian integers, then the values."""
    with checks.reading(path, "idx file of bytes"), _opened(path) as file:
        sizes = _sizes(path, file)
        checks.check_shape(path, sizes)
        count = math.prod(sizes)
        if path.suffix == ".gz":
            checks.check_unpacked(path, file.tell() + count)
            values = np.frombuffer(checks.up_to(file, count + 1), np.uint8)
        else:
            values = np.memmap(path, np.uint8, "r", file.tell())
    if len(values) != count:
        raise checks.refused(
            path,
            f"is cut off or too long: {len(values):,} bytes for {' × '.join(map(str, sizes))} values",
        )
    return values.reshape(sizes)


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _sizes(path: Path, file: IO[bytes]) -> list[int]:
    begin = file.read(4)
    if len(begin) < 4 or begin[:3] != bytes([0, 0, UINT8]) or begin[3] not in (1, 3):
        raise checks.refused(
            path, f"is no idx file of bytes: it begins with {begin.hex(' ') or 'nothing'}"
        )
    sizes = file.read(4 * begin[3])
    if len(sizes) < 4 * begin[3]:
        raise checks.refused(path, "is cut off: its sizes are missing")
    return [int(size) for size in np.frombuffer(sizes, ">u4")]


def _of_archive(path: Path) -> list[NDArray[Any]]:
    with (
        checks.reading(path, f"MNIST archive with {', '.join(ARRAYS)}"),
        zipfile.ZipFile(path) as archive,
    ):
        return [_array(path, archive, archive.getinfo(f"{name}.npy")) for name in ARRAYS]


def _array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """An array whose header promises as many bytes as the archive holds of it, so that reading it takes no more."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise checks.refused(
            path,
            f"{member.filename} is compressed in a way that numpy.savez does not know; write it with that",
        )
    checks.check_unpacked(path, member.file_size)
    with archive.open(member) as file:
        shape, dtype = _npy_header(file)
        promised, given = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
    if dtype.kind not in "uif":
        raise checks.refused(
            path, f"{member.filename} holds {dtype.name or dtype} instead of numbers"
        )
    if promised != given:
        sizes = " × ".join(map(str, shape))
        raise checks.refused(
            path,
            f"{member.filename} is cut off or too long: {given:,} bytes for {sizes} values of {dtype}",
        )
    with archive.open(member) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(file)
    if version not in readers:
        raise ValueError(
            f"an array in npy format {version[0]}.{version[1]}; write it with numpy.savez"
        )
    shape, _, dtype = readers[version](file)
    if min(shape, default=0) < 0:
        raise ValueError("an array with a negative size")
    return shape, dtype


def _checked(
    path: Path, part: str, images: NDArray[Any], labels: NDArray[Any]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        shapes = f"images {images.shape}, labels {labels.shape}"
        raise checks.refused(path, f"images and labels do not belong together: {shapes}")
    return checks.pixels(path, images, f"x_{part}"), checks.labels(path, labels, len(images))
