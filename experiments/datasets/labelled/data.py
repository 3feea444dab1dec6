"""Labelled images as cells read them: arrays on disk, equal for every framework, made once."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from experiments.datasets.images import Image, orientation_of_plain
from experiments.datasets.labelled.raw import Pictures
from tracking.errors import ErrorCode, UsageError

VERSION = 4
LEFT_OUT, VALIDATION, TRAINING = -1, 0, 1
MODES = {1: "L", 3: "RGB"}
_ARRAYS = ("images", "labels", "use", "files", "orientations")


@dataclass(frozen=True)
class Labelled:
    """Data set in the cache.

    images: uint8 (n, side, side, channels); labels: int32 (n,).
    training, validation: rows of each, ascending.
    mean, deviation: float32 (channels,), of the training images scaled to 0…1.
    left_out: pictures that could not be read; their rows are in neither part.
    files, orientations: of every row, as in `models.contract.ImageFiles`.
    in_files: there is a file for each picture.
    folders_left_out: folders of classes that were not read.
    """

    folder: Path
    name: str
    source: str
    digest: str
    classes: list[str]
    images: NDArray[np.uint8]
    labels: NDArray[np.int32]
    training: NDArray[np.int64]
    validation: NDArray[np.int64]
    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]
    left_out: list[str]
    files: NDArray[np.bytes_]
    orientations: NDArray[np.int8]
    in_files: bool
    folders_left_out: list[str]

    @property
    def side(self) -> int:
        return int(self.images.shape[1])

    @classmethod
    def open(cls, folder: Path) -> Labelled:
        """Open what `prepare` wrote; the images stay on disk until they are read.

        Raises:
            UsageError: The folder was damaged.
        """
        about, arrays = open_arrays(folder, *_ARRAYS)
        use = arrays.pop("use")
        if {len(array) for array in arrays.values()} != {len(use)}:
            raise refused(folder, "its arrays do not belong together; remove the folder")
        return cls(
            folder=folder,
            training=np.flatnonzero(use == TRAINING),
            validation=np.flatnonzero(use == VALIDATION),
            mean=np.array(about.pop("mean"), np.float32),
            deviation=np.array(about.pop("deviation"), np.float32),
            **arrays,
            **about,
        )


def prepare(source: str, *, side: int, channels: int, cache: Path, progress: Progress) -> Labelled:
    """Return the data set from the cache, where it is put if it is missing.

    Args:
        source: Name of an embedded data set, or the path of a folder or file.
        side: Height and width to which every picture is resized.

    Raises:
        UsageError: The data set is unknown or damaged; the message names the file.
    """
    embedded = marked_modules(__package__, "EMBEDDED")
    if source in embedded:
        pictures: Pictures = embedded[source].read()
    else:
        pictures = _read(Path(source).expanduser().absolute())
    content = {"content": pictures.key, "side": side, "channels": channels, "version": VERSION}
    if pictures.files:  # a folder that was moved has other files
        content["files"] = pictures.source
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    target = cache.absolute() / "labelled" / f"{pictures.name}-{digest}"
    if not (target / "about.json").is_file():
        with new_folder(target) as partial:
            _write(partial, pictures, digest, side, channels, progress)
    return Labelled.open(target)


def _read(path: Path) -> Pictures:
    check_path(path)
    formats = sorted(
        marked_modules(__package__, "LOOKS_FOR").values(),
        key=lambda module: hasattr(module, "GENERAL"),
    )
    with reading(path, "data set"):
        if not path.exists():
            names = " or ".join(f"data={name}" for name in marked_modules(__package__, "EMBEDDED"))
            raise refused(
                f"data={path}",
                f"there is no such file or folder; or take {names}, which is embedded",
                ErrorCode.NOT_FOUND,
            )
        for module in formats:
            if module.detect(path):
                pictures: Pictures = module.read(path)
                return pictures
    expected = "; ".join(module.LOOKS_FOR for module in formats)
    raise refused(
        f"data={path}", f"no known data set there; looked for {expected}", ErrorCode.NOT_FOUND
    )


def _write(
    target: Path, pictures: Pictures, digest: str, side: int, channels: int, progress: Progress
) -> None:
    count = len(pictures.labels)
    images = np.lib.format.open_memmap(
        target / "images.npy", mode="w+", dtype=np.uint8, shape=(count, side, side, channels)
    )
    # A full disk below an array in memory ends the process without a message.
    with (target / "images.npy").open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, count * side * side * channels)
    use, left_out = np.where(pictures.training, TRAINING, VALIDATION).astype(np.int8), []
    for row, picture in enumerate(pictures.pictures()):
        if row % 100 == 0:
            progress(f"images of {pictures.name}", row, count)
        if isinstance(picture, str):
            use[row] = LEFT_OUT
            left_out.append(picture)
        else:
            images[row] = to_array(picture, side, channels)
    if len(left_out) > max(1, count // 100):
        raise UsageError(
            ErrorCode.UNREADABLE,
            f"{pictures.source}: "
            f"{len(left_out)} of {count} pictures cannot be read, the first {left_out[0]}",
        )
    training, validation = (use == TRAINING).sum(), (use == VALIDATION).sum()
    if not (training and validation):
        raise refused(
            pictures.source,
            f"has {training} pictures to train on and {validation} to validate with"
            f"; both are needed",
            ErrorCode.TOO_FEW,
        )
    mean, deviation = _moments(images, np.flatnonzero(use == TRAINING))
    images.flush()
    about = {
        "name": pictures.name,
        "source": pictures.source,
        "digest": digest,
        "classes": pictures.classes,
        "mean": mean.tolist(),
        "deviation": deviation.tolist(),
        "left_out": left_out,
        "in_files": bool(pictures.files),
        "folders_left_out": pictures.folders_left_out,
    }
    save_arrays(
        target,
        about,
        labels=np.asarray(pictures.labels, np.int32),
        use=use,
        **_common_files(pictures, use),
    )


def _common_files(pictures: Pictures, use: NDArray[np.int8]) -> dict[str, NDArray[Any]]:
    """Return each row's file and orientation, if every framework decodes that file alike."""
    files, orientations = [b""] * len(use), np.ones(len(use), np.int8)
    for row, path in enumerate(pictures.files):
        if use[row] != LEFT_OUT and (orientation := orientation_of_plain(path)):
            files[row], orientations[row] = os.fsencode(path), orientation
    return {"files": np.array(files, np.bytes_), "orientations": orientations}


def to_array(picture: Image.Image, side: int, channels: int) -> NDArray[np.uint8]:
    """Return (side, side, channels), resized bilinearly; the aspect ratio is not preserved."""
    converted = picture.convert(MODES[channels])
    if converted.size != (side, side):
        converted = converted.resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(converted, np.uint8).reshape(side, side, channels)


def _moments(
    images: NDArray[np.uint8], rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of each channel of the rows, scaled to 0…1.

    The deviation of a constant channel is one.
    """
    total, squares, pixels = np.zeros(images.shape[3]), np.zeros(images.shape[3]), 0
    for first in range(0, len(rows), 1_000):
        part = images[rows[first : first + 1_000]].reshape(-1, images.shape[3]) / 255.0
        total, squares, pixels = total + part.sum(0), squares + (part**2).sum(0), pixels + len(part)
    mean = total / pixels
    deviation = np.sqrt(np.maximum(squares / pixels - mean**2, 0))
    return mean, np.where(deviation > 0, deviation, 1.0)
