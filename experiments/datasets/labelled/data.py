"""Labelled images as cells read them: arrays on disk, the same for every framework; made once, found again by their content."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets import marked_modules, own_code
from experiments.datasets.files import new_folder
from experiments.datasets.images import Image, orientation_of_plain
from experiments.datasets.labelled import checks
from experiments.datasets.labelled.raw import Pictures
from tracking.errors import WrongCall

Progress = Callable[[str, int, int | None], None]
VERSION = 4
LEFT_OUT, VALIDATION, TRAINING = -1, 0, 1
ABOUT: dict[str, type] = dict.fromkeys(("name", "source", "digest"), str) | {"in_files": bool}
ABOUT |= dict.fromkeys(("classes", "mean", "deviation", "left_out"), list)
MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Labelled:
    """images: uint8 (n, side, side, channels); labels: int32 (n,). training, validation: rows of each, ascending.

    mean, deviation: float32 (channels,), of the training images scaled to 0…1. left_out: pictures that could not be read; their
    rows are in neither. files, orientations: as in `models.contract.ImageFiles`, of every row.
    in_files: whether there is a file for each picture. folders_left_out: folders of classes that were not read.
    """

    folder: Path
    name: str
    source: str
    digest: str
    classes: tuple[str, ...]
    images: NDArray[np.uint8]
    labels: NDArray[np.int32]
    training: NDArray[np.int64]
    validation: NDArray[np.int64]
    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]
    left_out: tuple[str, ...]
    files: NDArray[np.bytes_]
    orientations: NDArray[np.int8]
    in_files: bool
    folders_left_out: tuple[str, ...] = ()

    @property
    def side(self) -> int:
        return int(self.images.shape[1])

    @classmethod
    def open(cls, folder: Path) -> Labelled:
        """What `prepare` wrote; the images stay on disk until they are read. Raises WrongCall where it was damaged since."""
        with checks.reading(
            folder, "whole data set in the cache (remove the folder, and it is made again)"
        ):
            return cls._opened(folder)

    @classmethod
    def _opened(cls, folder: Path) -> Labelled:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        if not isinstance(about, dict) or not all(
            isinstance(about.get(key), kind) for key, kind in ABOUT.items()
        ):
            raise ValueError("about.json lacks what belongs there")
        names = ("images", "labels", "use", "files", "orientations")
        images, labels, use, files, orientations = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in names
        )
        found = cls(
            folder=folder,
            name=about["name"],
            source=about["source"],
            digest=about["digest"],
            classes=tuple(about["classes"]),
            images=images,
            labels=np.array(labels, np.int32),
            training=np.flatnonzero(use == TRAINING),
            validation=np.flatnonzero(use == VALIDATION),
            mean=np.array(about["mean"], np.float32),
            deviation=np.array(about["deviation"], np.float32),
            left_out=tuple(about["left_out"]),
            files=files,
            orientations=orientations,
            in_files=about["in_files"],
            folders_left_out=tuple(map(str, about.get("folders_left_out", ()))),
        )
        found._check(len(use))
        return found

    def _check(self, rows: int) -> None:
        lengths = {len(self.images), self.labels.size, self.files.size, self.orientations.size}
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or lengths != {rows}:
            raise ValueError("its arrays do not belong together")
        if not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise ValueError("it has labels of no class")
        moments = np.stack([self.mean, self.deviation])
        if (
            moments.shape != (2, self.images.shape[3])
            or not np.isfinite(moments).all()
            or not self.deviation.all()
        ):
            raise ValueError("about.json has no mean and deviation of each channel")


def prepare(source: str, *, side: int, channels: int, cache: Path, progress: Progress) -> Labelled:
    """An embedded data set by its name, or the one in a folder or file, from the cache, where it is put if it is not there yet.

    Raises WrongCall for what is no known data set, or a damaged one; the message names the file.
    """
    embedded = marked_modules(__package__, "EMBEDDED")
    found: Pictures = (
        embedded[source].read()
        if source in embedded
        else _read(Path(source).expanduser().absolute())
    )
    known = {"content": found.key, "side": side, "channels": channels, "version": VERSION}
    known |= (
        {"files": found.source} if found.files else {}
    )  # a folder that was moved has other files
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
    target = cache.absolute() / "labelled" / f"{found.name}-{digest}"
    if not (target / "about.json").is_file():
        with new_folder(target) as partial:
            _write(partial, found, digest, side, channels, progress)
    return Labelled.open(target)


def _read(path: Path) -> Pictures:
    checks.check_path(path)
    if path.suffix == ".py":
        return own_code.read(path)
    formats = sorted(
        marked_modules(__package__, "LOOKS_FOR").values(),
        key=lambda module: hasattr(module, "GENERAL"),
    )
    try:
        if not path.exists():
            embedded = " or ".join(
                f"data={name}" for name in marked_modules(__package__, "EMBEDDED")
            )
            raise WrongCall(
                f"data={path}: there is no such file or folder; or take {embedded}, which is embedded"
            )
        for module in formats:
            if module.detect(path):
                pictures: Pictures = module.read(path)
                return pictures
    except OSError as error:
        raise checks.refused(error.filename or path, f"cannot be read: {error.strerror}") from None
    wanted = "; ".join(module.LOOKS_FOR for module in formats)
    raise WrongCall(f"data={path}: no known data set there; looked for {wanted}")


def of_numerals() -> tuple[str, ...]:
    """Names of the data sets whose pictures mean something else, or nothing, in a mirror."""
    return tuple(marked_modules(__package__, "NUMERALS"))


def _write(
    target: Path, found: Pictures, digest: str, side: int, channels: int, progress: Progress
) -> None:
    count = len(found.labels)
    _check_room(target.parent, found, count * side * side * channels)
    images = np.lib.format.open_memmap(
        target / "images.npy", mode="w+", dtype=np.uint8, shape=(count, side, side, channels)
    )
    use, left_out = np.where(found.training, TRAINING, VALIDATION).astype(np.int8), []
    for row, picture in enumerate(_told(found, progress)):
        if isinstance(picture, str):
            use[row] = LEFT_OUT
            left_out.append(picture)
        else:
            images[row] = brought(picture, side, channels)
    if len(left_out) > max(1, count // 100):
        raise WrongCall(
            f"{found.source}: {len(left_out)} of {count} pictures cannot be read, the first {left_out[0]}"
        )
    if not np.isin((TRAINING, VALIDATION), use).all():
        parts = f"{(use == TRAINING).sum()} pictures to train on and {(use == VALIDATION).sum()} to validate with"
        raise checks.refused(found.source, f"has {parts}; both are needed")
    mean, deviation = _moments(images, np.flatnonzero(use == TRAINING))
    images.flush()
    np.save(target / "labels.npy", np.asarray(found.labels, np.int32))
    np.save(target / "use.npy", use)
    _write_files(target, found, use)
    about: dict[str, Any] = {
        "name": found.name,
        "source": found.source,
        "digest": digest,
        "classes": list(found.classes),
    }
    about |= {
        "mean": mean.tolist(),
        "deviation": deviation.tolist(),
        "left_out": left_out,
        "in_files": bool(found.files),
    }
    about |= {"folders_left_out": list(found.folders_left_out)}
    (target / "about.json").write_text(json.dumps(about, indent=1), encoding="utf-8")


def _write_files(target: Path, found: Pictures, use: NDArray[np.int8]) -> None:
    """Of each row the file that every framework decodes alike, and how it lies there; empty for what the cache alone has."""
    files, orientations = [b""] * len(use), np.ones(len(use), np.int8)
    for row, path in enumerate(found.files):
        if use[row] != LEFT_OUT and (orientation := orientation_of_plain(path)):
            files[row], orientations[row] = os.fsencode(path), orientation
    np.save(target / "files.npy", np.array(files, np.bytes_))
    np.save(target / "orientations.npy", orientations)


def _check_room(cache: Path, found: Pictures, needed_bytes: int) -> None:
    """A full disk under an array that is mapped into memory ends the process without a word."""
    free_bytes = shutil.disk_usage(cache).free
    if needed_bytes > free_bytes:
        needed, free = (f"{size / 2**30:,.1f} GiB" for size in (needed_bytes, free_bytes))
        raise checks.refused(
            found.source,
            f"its pictures take {needed}, the cache {cache} has {free} left; take a smaller image_size or another cache",
        )


def _told(found: Pictures, progress: Progress) -> Iterator[Any]:
    for row, picture in enumerate(found.pictures()):
        if row % 100 == 0:
            progress(f"images of {found.name}", row, len(found.labels))
        yield picture


def brought(picture: Image.Image, side: int, channels: int) -> NDArray[np.uint8]:
    """(side, side, channels), by a bilinear filter where the size differs; the aspect ratio is not kept."""
    converted = picture.convert(MODES[channels])
    if converted.size != (side, side):
        converted = converted.resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(converted, np.uint8).reshape(side, side, channels)


def _moments(
    images: NDArray[np.uint8], rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each channel over the given images, scaled to 0…1; a constant channel deviates by one."""
    total, squares, pixels = np.zeros(images.shape[3]), np.zeros(images.shape[3]), 0
    for first in range(0, len(rows), 1_000):
        part = images[rows[first : first + 1_000]].reshape(-1, images.shape[3]) / 255.0
        total, squares, pixels = total + part.sum(0), squares + (part**2).sum(0), pixels + len(part)
    mean = total / pixels
    deviation = np.sqrt(np.maximum(squares / pixels - mean**2, 0))
    return mean, np.where(deviation > 0, deviation, 1.0)
