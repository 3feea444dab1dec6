"""CIFAR-10 and -100 as their authors publish them for Python: pickled dictionaries of bytes (Krizhevsky, 2009)."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.labelled.raw import Pictures, digest_of, of_arrays
from tracking.errors import WrongCall

LOOKS_FOR = "CIFAR-10 (cifar-10-batches-py with data_batch_1 … test_batch)"
TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST, NAMES = "test_batch", "batches.meta"
SIDE = 32


def detect(path: Path) -> bool:
    return (_inside(path) / TEST).is_file()


def read(path: Path) -> Pictures:
    folder = _inside(path)
    files = [folder / name for name in (*TRAINING, TEST) if (folder / name).is_file()]
    if len(files) < 2:
        raise WrongCall(f"data={path}: {TRAINING[0]} is missing; CIFAR-10 has {TRAINING[0]} … {TRAINING[-1]} and {TEST}")
    parts = [_part(file) for file in files]
    labels = np.concatenate([labels for _, labels in parts])
    training = np.arange(len(labels)) < len(labels) - len(parts[-1][1])
    names = _names(folder, int(labels.max()) + 1)
    images = [images for images, _ in parts]
    return Pictures("cifar-10", str(path), digest_of(files), names, labels, training, lambda: of_arrays(images))


def _inside(path: Path) -> Path:
    return path / "cifar-10-batches-py" if (path / "cifar-10-batches-py").is_dir() else path


def _part(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Rows of 3,072 bytes: the red plane, the green, the blue."""
    content = _unpickled(path)
    try:
        data, labels = np.asarray(content[b"data"], np.uint8), np.asarray(content[b"labels"], np.int64)
        images = data.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    except (KeyError, TypeError, ValueError) as error:
        raise WrongCall(f"{path}: is no batch of CIFAR-10: {error}") from None
    if len(images) != len(labels) or not len(labels):
        raise WrongCall(f"{path}: {len(images)} images, but {len(labels)} labels")
    return np.ascontiguousarray(images), labels


def _names(folder: Path, count: int) -> tuple[str, ...]:
    if not (folder / NAMES).is_file():
        return tuple(map(str, range(count)))
    names = _unpickled(folder / NAMES).get(b"label_names", [])
    return tuple(name.decode() for name in names) if len(names) >= count else tuple(map(str, range(count)))


class _Plain(pickle.Unpickler):
    """Arrays, and nothing that could run code."""

    ALLOWED = frozenset(
        {
            *(("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")),
            *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def _unpickled(path: Path) -> dict[bytes, Any]:
    try:
        with path.open("rb") as file:
            content = _Plain(file, encoding="bytes").load()
    except (OSError, pickle.UnpicklingError, EOFError, ValueError, IndexError, AttributeError, ImportError) as error:
        raise WrongCall(f"{path}: is no batch of CIFAR-10: {error}") from None
    if not isinstance(content, dict):
        raise WrongCall(f"{path}: is no batch of CIFAR-10: a {type(content).__name__} instead of a dictionary")
    return content
