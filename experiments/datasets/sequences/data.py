"""Sequences as cells read them: arrays on disk, the same for every framework; made once, found again by their content."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.files import alone, new_folder
from experiments.datasets.labelled.checks import check_path, reading, refused
from experiments.datasets.sequences.raw import EXAMPLES, Found
from models.contract import Array, Reads

Progress = Callable[[str, int, int | None], None]
VERSION = 1


@dataclass(frozen=True)
class Sequences:
    """lengths: int64 (n, parts). parts: of each, all examples one behind the other along their time.

    digest: of these arrays. total: examples in the files, of which these were chosen.
    """

    folder: Path
    digest: str
    total: int
    lengths: NDArray[np.int64]
    parts: tuple[Array, ...]

    @classmethod
    def open(cls, folder: Path) -> Sequences:
        """What `prepare` wrote; the arrays stay on disk until they are read. Raises WrongCall where it was damaged since."""
        with reading(
            folder, "whole data set in the cache (remove the folder, and it is made again)"
        ):
            about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
            lengths = np.load(folder / "lengths.npy")
            parts = tuple(
                np.memmap(
                    folder / f"part{index}.bin",
                    kind,
                    "r",
                    shape=(int(lengths[:, index].sum()), *tail),
                )
                for index, (kind, tail) in enumerate(about["parts"])
            )
            return cls(folder, about["digest"], about["total"], lengths, parts)

    def padded(self, part: int, rows: Array, kept: Array, width: int) -> Array:
        """(rows, width, …) of one part: the first `kept` of each of the rows, zeros behind them."""
        ends = np.cumsum(self.lengths[:, part])
        starts = ends - self.lengths[:, part]
        found = np.zeros((len(rows), width, *self.parts[part].shape[1:]), self.parts[part].dtype)
        for to, (row, count) in enumerate(zip(rows, kept, strict=True)):
            found[to, :count] = self.parts[part][starts[row] : starts[row] + count]
        return found


def prepare(
    source: str, reads: Reads, *, any_length: bool, seed: int, cache: Path, progress: Progress
) -> Sequences:
    """What lies at the path `source`, for networks that read that, from the cache, where it is put if it is not there yet.

    any_length: longer than the network takes, because it will be cut. Raises WrongCall for what is no such data, or damaged.
    """
    path = Path(source).expanduser().absolute()
    check_path(path)
    reader = importlib.import_module(f"{__package__}.{reads.kind}")
    longest = None if any_length else reads.longest
    with reading(path, "data set of sentences or speech"):
        if not path.exists():
            raise refused(f"data={path}", "there is no such file or folder; or take data=synthetic")
        found: Found = reader.find(path, longest=longest, **reads.sizes)
    known = [VERSION, EXAMPLES, reads.kind, dict(reads.sizes), longest, seed, found.key]
    folder = cache.absolute() / "sequences"
    target = folder / hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]
    with alone(
        target.with_suffix(".lock")
    ):  # of two campaigns side by side, one makes it and the other reads
        if not (target / "about.json").is_file():
            with new_folder(target) as partial:
                _write(partial, found, np.random.default_rng(seed), progress)
    return Sequences.open(target)


def _write(target: Path, found: Found, rng: np.random.Generator, progress: Progress) -> None:
    """An example at a time: those of an hour of speech are gigabytes."""
    total, examples = found.read(rng)
    digest, lengths, kinds = hashlib.sha256(), list[list[int]](), list[tuple[str, list[int]]]()
    for row, example in enumerate(examples):
        progress(f"reading {found.path.name}", row, min(total, EXAMPLES))
        kinds = [(part.dtype.str, list(part.shape[1:])) for part in example]
        lengths.append([len(part) for part in example])
        digest.update(json.dumps([kinds, lengths[-1]]).encode())
        for index, part in enumerate(example):
            digest.update(part.tobytes())
            with (target / f"part{index}.bin").open("ab") as file:
                file.write(part.tobytes())
    if not lengths:
        raise refused(found.path, "is empty: there is nothing in it to train on")
    np.save(target / "lengths.npy", np.array(lengths, np.int64))
    about = {"digest": digest.hexdigest()[:32], "total": total, "parts": kinds}
    (target / "about.json").write_text(json.dumps(about), encoding="utf-8")
