"""Layouts of captions and images; a format is a module with LOOKS_FOR, detect and rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Literal

from experiments.datasets import marked_modules
from experiments.datasets.files import lines, reading
from tracking import plain
from tracking.errors import UsageError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class CaptionRow:
    """Caption; `image` is a path below the folder; `split` is None if the data set has none."""

    image: str
    text: str
    split: Split | None


@dataclass(frozen=True)
class Skipped:
    """Reason for a row that gives no caption; rows are counted by reason."""

    reason: str


@dataclass(frozen=True)
class Layout:
    """Recognised data set: the places of its captions and images.

    own_split: the files themselves name images for training and for validation.
    row_example: a readable row, for the message when there is none.
    """

    name: str
    format: str
    folder: Path
    caption_files: tuple[Path, ...]
    image_folders: tuple[Path, ...]
    own_split: bool
    row_example: str


NO_CAPTION = Skipped("row without an image or a caption")
LEADS_OUT = Skipped("image name leads out of the folder: it begins with / or has ..")
CONTROLS = Skipped("control character in an image name, or NUL or half a character in a caption")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def caption_row(
    folder: str, image: object, text: object, split: Split | None
) -> CaptionRow | Skipped:
    """Check a row of a file; `image` is a name below `folder` and must not lead elsewhere."""
    if not (isinstance(image, str) and isinstance(text, str) and image and text.strip()):
        return NO_CAPTION
    if image.startswith("/") or ".." in image.split("/"):
        return LEADS_OUT
    if plain.CONTROLS.search(image) or _NO_TEXT.search(text):
        return CONTROLS
    return CaptionRow(f"{folder}/{image}" if folder else image, text, split)


def find(folder: Path) -> tuple[Layout, ModuleType]:
    """Return the data set in a folder and the module that reads it.

    Raises:
        UsageError: The folder holds no data set, or more than one.
    """
    with reading(folder, "folder"):
        is_folder = folder.is_dir()
    if not is_folder:
        raise UsageError(
            f"there is no folder {folder}; give scenes, or the folder that holds a caption data set"
        )
    formats = list(marked_modules(__package__, "LOOKS_FOR").values())
    detected = [(module.detect(folder), module) for module in formats]
    matches = [(layout, module) for layout, module in detected if layout is not None]
    if not matches:
        expected = "; ".join(module.LOOKS_FOR for module in formats)
        raise UsageError(f"{folder} holds no known caption data set; looked for {expected}")
    if len(matches) > 1:
        several = " and ".join(
            f"{layout.format} ({layout.caption_files[0].name})" for layout, _ in matches
        )
        raise UsageError(
            f"{folder} holds more than one caption data set: {several}; keep the caption "
            "files of one only"
        )
    layout, module = matches[0]
    return replace(layout, name=plain.line(layout.name), format=plain.line(layout.format)), module


def first_file(folder: Path, *names: str) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def image_folder(folder: Path, captions: Path, *names: str) -> Path:
    """Return the first of some folders that exists, also inside a folder of the same name."""
    for name in names:
        for candidate in (folder / name / name, folder / name):
            if candidate.is_dir():
                return candidate
    expected = ", ".join(f"{name}/" for name in names)
    raise UsageError(
        f"{captions} has no folder of images next to it; looked for {expected} in {folder}"
    )


def token_rows(path: Path) -> Iterator[tuple[str, str] | Skipped]:
    """Yield (image, caption) of lines such as `name.jpg#0<TAB>caption`."""
    for line in lines(path):
        label, _, text = line.partition("\t")
        image = label.rpartition("#")[0].strip()
        if image and text.strip():
            yield image, text
        elif line.strip():
            yield NO_CAPTION
