"""Pooled image features on disk: one memory-mapped array for each content (data, weights, size, framework), never made twice."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.datasets.captions import CaptionData
from models import weights
from models.contract import ModelError
from tracking.errors import WrongCall

MODEL = "densenet201"
SIZE = 1_920


@dataclass(frozen=True)
class Source:
    """Where the image network's weights come from: `text` as models.weights takes it, `digest` of what they are."""

    text: str
    digest: str


def resolve(wanted: str, seed: int) -> Source:
    """`auto` is imagenet if its checkpoint can be had, else random. Raises WrongCall for what cannot be had."""
    if wanted == "auto":
        try:
            return Source("imagenet", weights.imagenet(MODEL).name)
        except ModelError:
            wanted = "random"
    if wanted == "random":
        return Source("random", f"random:{seed}")
    try:
        path = (
            weights.imagenet(MODEL)
            if wanted == "imagenet"
            else weights.check_file(Path(wanted).expanduser().absolute())
        )
    except ModelError as error:
        raise WrongCall(str(error)) from None
    if wanted == "imagenet":
        return Source("imagenet", path.name)
    with path.open("rb") as file:
        return Source(str(path), hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True)
class Entry:
    """A folder of the cache: `features.npy` (images, 1920) float32, `done` (rows so far), `broken_images.json`."""

    folder: Path
    key: str

    @property
    def array(self) -> Path:
        return self.folder / "features.npy"

    @property
    def complete(self) -> bool:
        return (self.folder / "complete").exists()


def entry(cache: Path, data: CaptionData, source: Source, image_size: int, framework: str) -> Entry:
    text = json.dumps([data.digest, source.digest, image_size, framework])
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Entry(cache / "features" / key, key)


def rows_done(folder: Path) -> int:
    try:
        return int((folder / "done").read_text())
    except (FileNotFoundError, ValueError):
        return 0


def open_for_writing(folder: Path, images: int) -> np.memmap[Any, np.dtype[np.float32]]:
    """The array, kept from an interrupted extraction if there was one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "features.npy"
    if rows_done(folder) and path.exists():
        return np.lib.format.open_memmap(path, mode="r+")
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(images, SIZE))


def mark_done(folder: Path, rows: int, broken: dict[int, str], *, complete: bool = False) -> None:
    """After the rows are on disk; each file replaced as a whole."""
    for name, text in {
        "broken_images.json": json.dumps(broken, indent=1),
        "done": str(rows),
    }.items():
        (folder / f".{name}").write_text(text)
        os.replace(folder / f".{name}", folder / name)
    if complete:
        (folder / "complete").touch()


def broken(folder: Path) -> dict[int, str]:
    """Pictures that could not be read in the extraction: index → reason."""
    try:
        return {
            int(image): reason
            for image, reason in json.loads((folder / "broken_images.json").read_text()).items()
        }
    except FileNotFoundError:
        return {}
