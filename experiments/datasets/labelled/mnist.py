"""MNIST and what is written like it: four idx files, plain or gzip, or one `mnist.npz` (LeCun et al., 1998)."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.labelled.raw import Pictures, digest_of, of_arrays
from tracking.errors import WrongCall

LOOKS_FOR = "MNIST (train-images-idx3-ubyte[.gz], … or mnist.npz)"
PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
UINT8 = 0x08


def detect(path: Path) -> bool:
    return _archive(path) is not None or bool(_named(path, PARTS[0]))


def read(path: Path) -> Pictures:
    archive = _archive(path)
    files = [archive] if archive else [_part(path, name) for name in PARTS]
    train, train_labels, test, test_labels = _of_archive(archive) if archive else [_idx(file) for file in files]
    _check(files[0], train, train_labels)
    _check(files[len(files) // 2], test, test_labels)
    labels = np.concatenate([train_labels, test_labels])
    training = np.arange(len(labels)) < len(train_labels)
    names = tuple(str(number) for number in range(int(labels.max()) + 1))
    return Pictures("mnist", str(path), digest_of(files), names, labels, training, lambda: of_arrays([train, test]))


def _archive(path: Path) -> Path | None:
    if path.suffix == ".npz":
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
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise WrongCall(f"{path}: cannot be read: {error}") from None
    dimensions = data[3] if len(data) > 3 else 0
    if data[:2] != b"\0\0" or len(data) < 4 or data[2] != UINT8 or dimensions not in (1, 3):
        raise WrongCall(f"{path}: is no idx file of bytes: it begins with {data[:4].hex(' ') or 'nothing'}")
    start = 4 + 4 * dimensions
    sizes = [int(size) for size in np.frombuffer(data[4:start], ">u4")]
    if len(sizes) < dimensions or len(data) - start != int(np.prod(sizes)):
        raise WrongCall(f"{path}: is cut off or too long: {len(data) - start:,} bytes for {' × '.join(map(str, sizes))} values")
    return np.frombuffer(data, np.uint8, offset=start).reshape(sizes)


def _of_archive(path: Path) -> list[NDArray[np.uint8]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return [np.asarray(archive[name], np.uint8) for name in ARRAYS]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise WrongCall(f"{path}: is no MNIST archive with {', '.join(ARRAYS)}: {error}") from None


def _check(path: Path, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or not len(labels):
        shapes = f"images {images.shape}, labels {labels.shape}"
        raise WrongCall(f"{path}: images and labels do not belong together: {shapes}")
