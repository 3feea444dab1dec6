"""Sequences as cells read them: arrays on disk, equal for every framework, made once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.datasets import marked_modules
from experiments.datasets.files import (
    Progress,
    check_path,
    new_folder,
    open_arrays,
    reading,
    refused,
    save_arrays,
)
from experiments.datasets.sequences.raw import EXAMPLES, Reader, SequenceSource
from models.contract import Array, DataRequirements
from tracking.errors import ErrorCode

VERSION = 1


@dataclass(frozen=True)
class Sequences:
    """Data set in the cache.

    digest: of its arrays.
    total: examples in the files, of which these were chosen.
    lengths: int64 (n, parts).
    parts: of each, all examples one behind the other along their time.
    """

    folder: Path
    digest: str
    total: int
    lengths: NDArray[np.int64]
    parts: tuple[Array, ...]

    @classmethod
    def open(cls, folder: Path) -> Sequences:
        """Open what `prepare` wrote; the arrays stay on disk until they are read."""
        about, arrays = open_arrays(folder, "lengths")
        lengths, parts = arrays["lengths"], []
        with reading(folder, "whole data set in the cache (remove the folder to make it again)"):
            for index, (kind, tail) in enumerate(about["parts"]):
                shape = (int(lengths[:, index].sum()), *tail)
                parts.append(np.memmap(folder / f"part{index}.bin", kind, "r", shape=shape))
        return cls(folder, about["digest"], about["total"], lengths, tuple(parts))

    def padded(self, part: int, rows: Array, counts: Array, width: int) -> Array:
        """Return (rows, width, …) of one part: the first `counts` of each row, then zeros."""
        ends = np.cumsum(self.lengths[:, part])
        starts = ends - self.lengths[:, part]
        values = self.parts[part]
        padded = np.zeros((len(rows), width, *values.shape[1:]), values.dtype)
        for to, (row, count) in enumerate(zip(rows, counts, strict=True)):
            padded[to, :count] = values[starts[row] : starts[row] + count]
        return padded


def prepare(
    source: str,
    reads: DataRequirements,
    *,
    any_length: bool,
    seed: int,
    cache: Path,
    progress: Progress,
) -> Sequences:
    """Return the data set from the cache, where it is put if it is missing.

    Args:
        source: Path of a file or folder.
        reads: Kind and sizes of what the networks read.
        any_length: Examples may be longer than the network takes, because they will be cut.

    Raises:
        UsageError: There is no such data, or they are damaged.
    """
    path = Path(source).expanduser().absolute()
    check_path(path)
    modules = marked_modules(__package__, "READERS").values()
    readers: dict[str, Reader] = {kind: read for m in modules for kind, read in m.READERS.items()}
    longest = None if any_length else reads.longest
    with reading(path, "data set of sentences or speech"):
        if not path.exists():
            raise refused(
                f"data={path}",
                "there is no such file or folder; or take data=synthetic",
                ErrorCode.NOT_FOUND,
            )
        sequences = readers[reads.kind](path, longest=longest, **reads.sizes)
    content = [VERSION, EXAMPLES, reads.kind, dict(reads.sizes), longest, seed, sequences.key]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
    target = cache.absolute() / "sequences" / digest
    if not (target / "about.json").is_file():
        with new_folder(target) as partial:
            _write(partial, sequences, np.random.default_rng(seed), progress)
    return Sequences.open(target)


def _write(
    target: Path, source: SequenceSource, rng: np.random.Generator, progress: Progress
) -> None:
    """Write one example after the other: those of an hour of speech are gigabytes."""
    total, examples = source.read(rng)
    digest, lengths, kinds = hashlib.sha256(), list[list[int]](), list[tuple[str, list[int]]]()
    for row, example in enumerate(examples):
        progress(f"reading {source.path.name}", row, min(total, EXAMPLES))
        kinds = [(part.dtype.str, list(part.shape[1:])) for part in example]
        lengths.append([len(part) for part in example])
        digest.update(json.dumps([kinds, lengths[-1]]).encode())
        for index, part in enumerate(example):
            digest.update(part.tobytes())
            with (target / f"part{index}.bin").open("ab") as file:
                file.write(part.tobytes())
    if not lengths:
        raise refused(
            source.path, "is empty: there is nothing in it to train on", ErrorCode.TOO_FEW
        )
    about = {"digest": digest.hexdigest()[:32], "total": total, "parts": kinds}
    save_arrays(target, about, lengths=np.array(lengths, np.int64))
