"""Pictures in folders named after classes: `train/CLASS/…` and `val/CLASS/…`, or `CLASS/…`."""

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
from tracking.errors import UsageError

LOOKS_FOR = "folders of pictures (train/CLASS/… and val/CLASS/…, or CLASS/…)"
GENERAL = True  # detected last, because many data sets are kept in folders
ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"})
LEADS_OUT = "the folder of a class leads out of the data folder"
VALIDATION = ("val", "validation", "valid", "test")


def detect(path: Path) -> bool:
    return path.is_dir() and any(_pictures(folder) for folder in _classes(_parts(path)[0]))


def read(path: Path) -> Pictures:
    first, second = _parts(path)
    left_out = [
        plain.line(f"{folder}: {LEADS_OUT}")
        for part in (first, second)
        for folder in (_classes(part) if part else ())
        if not _is_inside(folder, path)
    ]
    linked = ""
    if left_out:
        right = "name the folder that holds them"
        linked = f"; {len(left_out)} left out, the first {left_out[0]}; {right}"
    names = [folder.name for folder in _classes(first) if _is_inside(folder, path)]
    if len(names) < 2:
        raise UsageError(f"data={path}: {len(names)} classes in {first}, two are needed{linked}")
    checks.check_names(first, names)
    files = _labelled_files(path, first, names)
    training = held_out([label for _, label in files])
    if second:
        others = _labelled_files(path, second, names)
        if not others:
            raise UsageError(f"data={path}: {second.name} has no pictures{linked}")
        training = np.arange(len(files) + len(others)) < len(files)
        files += others
    paths, labels = [file for file, _ in files], [label for _, label in files]
    return Pictures(
        path.name,
        str(path),
        _key(path, paths, left_out),
        tuple(names),
        labels,
        training,
        lambda: _open(paths),
        paths,
        left_out,
    )


def _parts(path: Path) -> tuple[Path, Path | None]:
    """Return the folder of classes to train on, and the one to validate with, if there is one."""
    if not (path / "train").is_dir():
        return path, None
    candidates = (path / name for name in VALIDATION)
    return path / "train", next((folder for folder in candidates if folder.is_dir()), None)


def _classes(folder: Path) -> list[Path]:
    return sorted(
        entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )


def _is_inside(folder: Path, root: Path) -> bool:
    return folder.resolve().is_relative_to(root.resolve())


def _pictures(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS)


def _labelled_files(root: Path, part: Path, names: list[str]) -> list[tuple[Path, int]]:
    files = []
    for folder in _classes(part):
        if not _is_inside(folder, root):
            continue
        if folder.name not in names:
            raise UsageError(
                f"data={root}: {part.name} has the class {folder.name!r}, which train has not"
            )
        files += [(file, names.index(folder.name)) for file in _pictures(folder)]
    return files


def _key(root: Path, paths: list[Path], left_out: list[str]) -> str:
    """Digest names, sizes and times: the contents of a million pictures would take minutes."""
    total = hashlib.sha256()
    for path in paths:
        # A link to nowhere is left out and named later.
        stat = path.stat() if path.exists() else None
        size, time = (stat.st_size, stat.st_mtime_ns) if stat else (-1, -1)
        total.update(os.fsencode(path.relative_to(root)) + f" {size} {time}\n".encode())
    total.update("\n".join(left_out).encode())
    return total.hexdigest()


def _open(paths: list[Path]) -> Iterable[Image.Image | str]:
    for path in paths:
        picture = images.opened(path)
        yield plain.line(f"{path}: {picture}") if isinstance(picture, str) else picture
