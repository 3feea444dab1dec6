"""Pictures in folders named after classes: `train/CLASS/…` and `val/CLASS/…`, or `CLASS/…`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from experiments.datasets import images
from experiments.datasets.files import refused
from experiments.datasets.images import Image
from experiments.datasets.labelled import checks
from experiments.datasets.labelled.raw import Pictures, held_out
from tracking import plain
from tracking.errors import ErrorCode

LOOKS_FOR = "folders of pictures (train/CLASS/… and val/CLASS/…, or CLASS/…)"
GENERAL = True  # detected last, because many data sets consist of folders
ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"})
LEADS_OUT = "the folder of a class leads out of the data folder"
VALIDATION = ("val", "validation", "valid", "test")


def detect(path: Path) -> bool:
    return path.is_dir() and any(_pictures(folder) for folder in _classes(_parts(path)[0]))


def read(path: Path) -> Pictures:
    left_out: list[str] = []
    parts = [_inside(part, path, left_out) for part in _parts(path)]
    names = [folder.name for folder in parts[0]]
    if len(names) < 2:
        why = f"{len(names)} classes in it, two are needed"
        if left_out:
            why += f"; left out: {left_out[0]}; name the folder that holds them"
        raise refused(f"data={path}", why, ErrorCode.TOO_FEW)
    checks.check_names(path, names)
    files: list[list[Path]] = []
    labels: list[int] = []
    for folders in parts:
        files.append([])
        for folder in folders:
            if folder.name not in names:
                raise refused(
                    f"data={path}",
                    f"{folder.parent.name} has the class {folder.name!r}, which train has not",
                    ErrorCode.CONFLICT,
                )
            pictures = _pictures(folder)
            files[-1] += pictures
            labels += [names.index(folder.name)] * len(pictures)
    paths = [file for part in files for file in part]
    training = held_out(labels)
    if len(parts) > 1:
        training = np.arange(len(paths)) < len(files[0])
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


def _parts(path: Path) -> list[Path]:
    if not (path / "train").is_dir():
        return [path]
    candidates = [path / name for name in VALIDATION if (path / name).is_dir()]
    return [path / "train", *candidates[:1]]


def _classes(folder: Path) -> list[Path]:
    return sorted(
        entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )


def _inside(part: Path, root: Path, left_out: list[str]) -> list[Path]:
    """Return the folders of classes, without those that lead out, which are listed."""
    folders = []
    for folder in _classes(part):
        if folder.resolve().is_relative_to(root.resolve()):
            folders.append(folder)
        else:
            left_out.append(plain.line(f"{folder}: {LEADS_OUT}"))
    return folders


def _pictures(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS)


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
        picture = images.open_picture(path)
        yield plain.line(f"{path}: {picture}") if isinstance(picture, str) else picture
