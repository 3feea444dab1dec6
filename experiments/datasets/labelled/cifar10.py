"""CIFAR-10 and -100 as published for Python: pickled dictionaries of bytes (Krizhevsky, 2009).

The pickles are read in a separate process. `find_class` permits arrays only, so a file cannot run
code. It could still take memory or time, or crash the parser: the process has limits, and a crash
ends that process only.
"""

from __future__ import annotations

import multiprocessing
import pickle
import resource
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.files import check_size, reading, refused
from experiments.datasets.labelled import checks
from experiments.datasets.labelled.raw import Pictures, digest_of, of_arrays
from tracking.errors import ErrorCode

LOOKS_FOR = "CIFAR-10 (cifar-10-batches-py with data_batch_1 … test_batch)"
TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST, NAMES = "test_batch", "batches.meta"
SIDE = 32
MAX_BYTES = 1 << 30
# Limits of the process: beyond four times the files' size, for Python, NumPy and their threads.
EXTRA_BYTES = 1 << 30
CPU_SECONDS = 20
_ARRAY_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


def detect(path: Path) -> bool:
    return (_inside(path) / TEST).is_file()


def read(path: Path) -> Pictures:
    folder = _inside(path)
    files = [folder / name for name in (*TRAINING, TEST) if (folder / name).is_file()]
    if len(files) < 2:
        raise refused(
            f"data={path}",
            f"{TRAINING[0]} is missing; CIFAR-10 has {TRAINING[0]} … {TRAINING[-1]} and {TEST}",
            ErrorCode.NOT_FOUND,
        )
    has_names = (folder / NAMES).is_file()
    contents = _read_isolated([*files, folder / NAMES] if has_names else files)
    images, parts = zip(*contents[: len(files)], strict=True)
    labels = np.concatenate(parts)
    training = np.arange(len(labels)) < len(labels) - len(parts[-1])
    names = checks.numbered(labels)
    if has_names:
        if len(names) > len(contents[-1]):
            raise refused(
                folder / NAMES,
                f"names {len(contents[-1])} classes, but a picture has the label {len(names) - 1}",
                ErrorCode.CONFLICT,
            )
        names = contents[-1]
    key = digest_of(files)
    return Pictures("cifar-10", str(path), key, names, labels, training, lambda: of_arrays(images))


def _inside(path: Path) -> Path:
    return path / "cifar-10-batches-py" if (path / "cifar-10-batches-py").is_dir() else path


def _read_isolated(files: list[Path]) -> list[Any]:
    """Return what `read_batch` and `read_names` return of the files."""
    for path in files:
        check_size(path, MAX_BYTES)
    limit_bytes = 4 * sum(path.stat().st_size for path in files) + EXTRA_BYTES
    limits = (limit_bytes, CPU_SECONDS)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=_limit, initargs=limits) as process:
        try:
            return list(process.map(_read_file, files))
        except BrokenProcessPool:
            raise refused(
                files[0].parent,
                f"has no batches of CIFAR-10: "
                f"their reader crashed, or took more than {CPU_SECONDS} s",
            ) from None


def _limit(limit_bytes: int, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read_file(path: Path) -> Any:
    return read_names(path) if path.name == NAMES else read_batch(path)


def read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images (n, 32, 32, 3) and labels; a row has the red plane, the green, the blue."""
    content, values = _dictionary(path), 3 * SIDE * SIDE
    data = content.get(b"data")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != values:
        raise refused(path, f"'data' is no array of {values:,} values for each picture")
    rows = checks.pixels(path, data, "data").reshape(-1, 3, SIDE, SIDE)
    labels = checks.labels(path, content.get(b"labels"), len(rows))
    return np.ascontiguousarray(rows.transpose(0, 2, 3, 1)), labels


def read_names(path: Path) -> tuple[str, ...]:
    entries = _dictionary(path).get(b"label_names")
    if not (isinstance(entries, list) and entries and all(type(name) is bytes for name in entries)):
        raise refused(
            path, "has no list 'label_names'; repair it, or remove the file to number the classes"
        )
    names = tuple(name.decode(errors="surrogateescape") for name in entries)
    checks.check_names(path, names)
    return names


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ARRAY_NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _dictionary(path: Path) -> dict[bytes | str, Any]:
    with reading(path, "batch of CIFAR-10"), path.open("rb") as file:
        try:
            content = _ArrayUnpickler(file, encoding="bytes").load()
        except (pickle.UnpicklingError, AttributeError, TypeError) as error:
            raise ValueError(str(error)) from None
        if not isinstance(content, dict):
            raise ValueError(f"it is a {type(content).__name__} instead of a dictionary")
    return content
