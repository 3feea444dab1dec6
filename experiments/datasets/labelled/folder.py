"""Pictures in folders named after their classes, as ImageNet is kept: `train/CLASS/…` and `val/CLASS/…`, or `CLASS/…` alone."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from experiments.datasets import images
from experiments.datasets.images import Image
from experiments.datasets.labelled import checks
from experiments.datasets.labelled.raw import Pictures, held_out
from tracking import plain
from tracking.errors import WrongCall

LOOKS_FOR = "folders of pictures (train/CLASS/… and val/CLASS/…, or CLASS/…)"
GENERAL = True  # many a data set is kept in folders: asked only where none of the others knows it
ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"})
VALIDATION = ("val", "validation", "valid", "test")


def detect(path: Path) -> bool:
    return path.is_dir() and any(_pictures(folder) for folder in _classes(_parts(path)[0]))


def read(path: Path) -> Pictures:
    first, second = _parts(path)
    names = [folder.name for folder in _classes(first)]
    checks.check_names(first, names)
    files = [(file, names.index(folder.name)) for folder in _classes(first) for file in _pictures(folder)]
    training = np.ones(len(files), bool) if second else held_out([label for _, label in files])
    if second:
        unknown = sorted({folder.name for folder in _classes(second)} - set(names))
        if unknown:
            raise WrongCall(f"data={path}: {second.name} has the class {unknown[0]!r}, which {first.name} has not")
        others = [(file, names.index(folder.name)) for folder in _classes(second) for file in _pictures(folder)]
        if not others:
            raise WrongCall(f"data={path}: {second.name} has no pictures")
        files, training = files + others, np.concatenate([training, np.zeros(len(others), bool)])
    if len(names) < 2:
        raise WrongCall(f"data={path}: {len(names)} class, two are needed; have {', '.join(names) or 'no folder'}")
    paths, labels = [file for file, _ in files], [label for _, label in files]
    return Pictures(path.name, str(path), _key(path, paths), tuple(names), labels, training, lambda: _opened(paths), paths)


def _parts(path: Path) -> tuple[Path, Path | None]:
    """The folder of classes to train on, and that to validate with, where there is one."""
    if not (path / "train").is_dir():
        return path, None
    return path / "train", next((path / name for name in VALIDATION if (path / name).is_dir()), None)


def _classes(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _pictures(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS)


def _key(root: Path, paths: list[Path]) -> str:
    """Names, sizes and times: the contents of a million pictures would take minutes to read."""
    total = hashlib.sha256()
    for path in paths:
        found = path.stat() if path.exists() else None  # a link to nowhere is left out and named later
        size, time = (found.st_size, found.st_mtime_ns) if found else (-1, -1)
        total.update(os.fsencode(path.relative_to(root)) + f" {size} {time}\n".encode())
    return total.hexdigest()


def _opened(paths: list[Path]) -> Iterable[Image.Image | str]:
    for path in paths:
        found = images.opened(path)
        yield plain.line(f"{path}: {found}") if isinstance(found, str) else found
