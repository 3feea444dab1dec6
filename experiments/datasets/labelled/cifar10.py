"""CIFAR-10 and -100 as published for Python: pickled dictionaries of bytes (Krizhevsky, 2009).

`python -m experiments.datasets.labelled.cifar10 SECONDS OUT.npz FILE …` reads the pickles in a
separate process. `find_class` permits arrays only, so a file cannot run code. It could still take
memory or time, or crash the parser: the process has limits, and a crash ends that process only.
"""

from __future__ import annotations

import pickle
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.files import reading, refused
from experiments.datasets.labelled import checks
from experiments.datasets.labelled.raw import Pictures, digest_of, of_arrays
from tracking.errors import UsageError

LOOKS_FOR = "CIFAR-10 (cifar-10-batches-py with data_batch_1 … test_batch)"
TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST, NAMES = "test_batch", "batches.meta"
SIDE = 32
MAX_BYTES = 1 << 30
# Limits of the process: beyond four times the files' size, for Python, NumPy and their threads.
EXTRA_BYTES = 1 << 30
CPU_SECONDS = 20
REFUSED = 2
_ARRAY_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}
_BYTES_NAMES = {("_codecs", "encode"), ("__builtin__", "bytes")}


def detect(path: Path) -> bool:
    return (_inside(path) / TEST).is_file()


def read(path: Path) -> Pictures:
    folder = _inside(path)
    files = [folder / name for name in (*TRAINING, TEST) if (folder / name).is_file()]
    if len(files) < 2:
        raise UsageError(
            f"data={path}: {TRAINING[0]} is missing; CIFAR-10 has {TRAINING[0]} … "
            f"{TRAINING[-1]} and {TEST}"
        )
    has_names = (folder / NAMES).is_file()
    arrays = _read_isolated([*files, folder / NAMES] if has_names else files)
    images, parts = arrays[0 : 2 * len(files) : 2], arrays[1 : 2 * len(files) : 2]
    labels = np.concatenate(parts)
    training = np.arange(len(labels)) < len(labels) - len(parts[-1])
    names = checks.numbered(labels)
    if has_names:
        if len(names) > len(arrays[-1]):
            raise refused(
                folder / NAMES,
                f"names {len(arrays[-1])} classes, but there is a picture with the label "
                f"{len(names) - 1} (the first is 0)",
            )
        names = tuple(map(str, arrays[-1]))
    key = digest_of(files)
    return Pictures("cifar-10", str(path), key, names, labels, training, lambda: of_arrays(images))


def _inside(path: Path) -> Path:
    return path / "cifar-10-batches-py" if (path / "cifar-10-batches-py").is_dir() else path


def _read_isolated(files: list[Path]) -> list[NDArray[Any]]:
    for path in files:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise refused(path, f"has {size:,} bytes; at most {MAX_BYTES:,} are read")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "arrays.npz")
        options = map(str, [CPU_SECONDS, output, *files])
        command = [sys.executable, "-m", __name__, *options]
        child = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if child.returncode == REFUSED:
            raise UsageError(child.stderr.strip())
        if child.returncode:
            is_slow = child.returncode == -signal.SIGXCPU
            why = f"they take more than {CPU_SECONDS} s" if is_slow else "their reader crashed"
            raise refused(files[0].parent, f"has no batches of CIFAR-10: {why}")
        with np.load(output) as arrays:
            return list(arrays.values())


def main(seconds: str, output: str, *paths: str) -> int:
    files = [Path(path) for path in paths]
    limit_bytes = 4 * sum(path.stat().st_size for path in files) + EXTRA_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    arrays: list[NDArray[Any]] = []
    try:
        for path in files:
            if path.name == NAMES:
                arrays.append(np.array(read_names(path)))
            else:
                arrays.extend(read_batch(path))
    except UsageError as error:
        print(error, file=sys.stderr)
        return REFUSED
    np.savez(output, *arrays)
    return 0


def read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images (n, 32, 32, 3) and labels; a row has the red plane, the green, the blue."""
    content = _dictionary(path)
    for key in (b"data", b"labels"):
        if key not in content:
            raise refused(path, f"is no batch of CIFAR-10: {key.decode()!r} is missing")
    data, values = content[b"data"], 3 * SIDE * SIDE
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != values:
        raise refused(
            path,
            f"is no batch of CIFAR-10: 'data' is no array of {values:,} values for each picture",
        )
    rows = checks.pixels(path, data, "data").reshape(-1, 3, SIDE, SIDE)
    labels = checks.labels(path, content[b"labels"], len(rows))
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
    """Unpickler of plain values, arrays, and bytes in Python 2's protocols."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _BYTES_NAMES:
            return _latin1
        if (module, name) not in _ARRAY_NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _latin1(text: str = "", encoding: object = "latin1") -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("it has bytes in another encoding than latin1")
    return text.encode("latin-1")


def _dictionary(path: Path) -> dict[bytes | str, Any]:
    with reading(path, "batch of CIFAR-10"), path.open("rb") as file:
        try:
            content = _ArrayUnpickler(file, encoding="bytes").load()
        except (pickle.UnpicklingError, AttributeError, TypeError) as error:
            raise ValueError(str(error)) from None
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise refused(path, f"is no batch of CIFAR-10: a {kind} instead of a dictionary")
    return content


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
