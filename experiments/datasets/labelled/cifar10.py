"""CIFAR-10 and -100 as their authors publish them for Python: pickled dictionaries of bytes (Krizhevsky, 2009)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.labelled import checks, pickles
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
        raise WrongCall(
            f"data={path}: {TRAINING[0]} is missing; CIFAR-10 has {TRAINING[0]} … {TRAINING[-1]} and {TEST}"
        )
    parts = [_part(file) for file in files]
    labels = np.concatenate([labels for _, labels in parts])
    training = np.arange(len(labels)) < len(labels) - len(parts[-1][1])
    names = (
        _names(folder / NAMES, labels) if (folder / NAMES).is_file() else checks.numbered(labels)
    )
    images = [images for images, _ in parts]
    return Pictures(
        "cifar-10", str(path), digest_of(files), names, labels, training, lambda: of_arrays(images)
    )


def _inside(path: Path) -> Path:
    return path / "cifar-10-batches-py" if (path / "cifar-10-batches-py").is_dir() else path


def _part(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Rows of 3,072 bytes: the red plane, the green, the blue."""
    content = _dictionary(path)
    for key in (b"data", b"labels"):
        if key not in content:
            raise checks.refused(path, f"is no batch of CIFAR-10: {key.decode()!r} is missing")
    data = content[b"data"]
    if (
        not isinstance(data, pickles.Array)
        or data.values.ndim != 2
        or data.values.shape[1] != 3 * SIDE * SIDE
    ):
        raise checks.refused(
            path,
            f"is no batch of CIFAR-10: 'data' is no array of {3 * SIDE * SIDE:,} values a picture",
        )
    rows = checks.pixels(path, data.values, "data")
    labels = content[b"labels"]
    numbers = checks.labels(
        path, labels.values if isinstance(labels, pickles.Array) else labels, len(rows)
    )
    return np.ascontiguousarray(rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)), numbers


def _names(path: Path, labels: NDArray[np.int64]) -> tuple[str, ...]:
    found = _dictionary(path).get(b"label_names")
    if (
        not isinstance(found, list)
        or not found
        or not all(isinstance(name, bytes) for name in found)
    ):
        raise checks.refused(
            path, "has no list 'label_names'; mend it, or remove the file to number the classes"
        )
    names = tuple(name.decode(errors="surrogateescape") for name in found)
    checks.check_names(path, names)
    if (largest := int(labels.max())) >= len(names):
        raise checks.refused(
            path,
            f"names {len(names)} classes, but there is a picture with the label {largest} (the first is 0)",
        )
    return names


def _dictionary(path: Path) -> dict[bytes | str, Any]:
    with checks.reading(path, "batch of CIFAR-10"):
        content = pickles.load(path)
    if not isinstance(content, dict):
        raise checks.refused(
            path, f"is no batch of CIFAR-10: a {type(content).__name__} instead of a dictionary"
        )
    return content
