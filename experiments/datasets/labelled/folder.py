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
LEADS_OUT = "the folder of a class leads out of the data folder"
VALIDATION = ("val", "validation", "valid", "test")


def detect(path: Path) -> bool:
    return path.is_dir() and any(_pictures(folder) for folder in _classes(_parts(path)[0]))


def read(path: Path) -> Pictures:
    first, second = _parts(path)
    of_first, left_out = _inside(path, _classes(first))
    of_second, more_left_out = _inside(path, _classes(second) if second else [])
    left_out += more_left_out
    linked = (
        f"; {len(left_out)} left out, the first {left_out[0]}; name the folder that holds them"
        if left_out
        else ""
    )
    names = [folder.name for folder in of_first]
    if not names:
        raise WrongCall(f"data={path}: 0 classes, two are needed{linked}")
    checks.check_names(first, names)
    files = [(file, names.index(folder.name)) for folder in of_first for file in _pictures(folder)]
    training = np.ones(len(files), bool) if second else held_out([label for _, label in files])
    if second:
        unknown = sorted({folder.name for folder in of_second} - set(names))
        if unknown:
            raise WrongCall(
                f"data={path}: {second.name} has the class {unknown[0]!r}, which {first.name} has not"
            )
        others = [
            (file, names.index(folder.name)) for folder in of_second for file in _pictures(folder)
        ]
        if not others:
            raise WrongCall(f"data={path}: {second.name} has no pictures{linked}")
        files, training = files + others, np.concatenate([training, np.zeros(len(others), bool)])
    if len(names) < 2:
        raise WrongCall(f"data={path}: {len(names)} class, two are needed; have {names[0]}{linked}")
    paths, labels = [file for file, _ in files], [label for _, label in files]
    key = _key(path, paths, left_out)
    return Pictures(
        path.name,
        str(path),
        key,
        tuple(names),
        labels,
        training,
        lambda: _opened(paths),
        paths,
        left_out,
    )


def _parts(path: Path) -> tuple[Path, Path | None]:
    """The folder of classes to train on, and that to validate with, where there is one."""
    if not (path / "train").is_dir():
        return path, None
    return path / "train", next(
        (path / name for name in VALIDATION if (path / name).is_dir()), None
    )


def _classes(folder: Path) -> list[Path]:
    return sorted(
        entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )


def _inside(root: Path, folders: list[Path]) -> tuple[list[Path], list[str]]:
    """Return the folders that lie below the root, and of the others, which links lead to, why they are left out."""
    real = root.resolve()
    inside = [folder for folder in folders if folder.resolve().is_relative_to(real)]
    outside = [folder for folder in folders if folder not in inside]
    return inside, [plain.line(f"{folder}: {LEADS_OUT}") for folder in outside]


def _pictures(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS)


def _key(root: Path, paths: list[Path], left_out: list[str]) -> str:
    """Names, sizes and times: the contents of a million pictures would take minutes to read."""
    total = hashlib.sha256()
    for path in paths:
        found = (
            path.stat() if path.exists() else None
        )  # a link to nowhere is left out and named later
        size, time = (found.st_size, found.st_mtime_ns) if found else (-1, -1)
        total.update(os.fsencode(path.relative_to(root)) + f" {size} {time}\n".encode())
    total.update("\n".join(left_out).encode())
    return total.hexdigest()


def _opened(paths: list[Path]) -> Iterable[Image.Image | str]:
    for path in paths:
        found = images.opened(path)
        yield plain.line(f"{path}: {found}") if isinstance(found, str) else found
