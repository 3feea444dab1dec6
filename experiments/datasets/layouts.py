"""Layouts of captions and images; a format is a module with LOOKS_FOR, detect and rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Literal

from experiments.datasets import marked_modules
from experiments.datasets.files import lines
from tracking import plain
from tracking.errors import ErrorCode, UsageError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class CaptionRow:
    """Caption; `image` is a path below the folder; `split` is None if the data set has none."""

    image: str
    text: str
    split: Split | None


class SkipReason(StrEnum):
    """Reason for a row that gives no caption; rows are counted by reason."""

    NO_CAPTION = "row without an image or a caption"
    LEADS_OUT = "image name leads out of the folder: it begins with / or has .."
    CONTROLS = "control character in an image name, or NUL or half a character in a caption"
    NO_WORD = "caption without a word"
    TOO_LONG = "caption of more than 1,000 words"
    TWO_FILES = "id of more than one image file"
    NOT_LISTED = "image in no split list"
    UNKNOWN_SPLIT = "unknown split"


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


_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def caption_row(
    folder: str, image: object, text: object, split: Split | None
) -> CaptionRow | SkipReason:
    """Check a row of a file; `image` is a name below `folder` and must not lead elsewhere."""
    if not (isinstance(image, str) and isinstance(text, str) and image and text.strip()):
        return SkipReason.NO_CAPTION
    if image.startswith("/") or ".." in image.split("/"):
        return SkipReason.LEADS_OUT
    if plain.CONTROLS.search(image) or _NO_TEXT.search(text):
        return SkipReason.CONTROLS
    return CaptionRow(f"{folder}/{image}" if folder else image, text, split)


def find(folder: Path) -> tuple[Layout, ModuleType]:
    """Return the data set in a folder and the module that reads it.

    Raises:
        UsageError: The folder holds no data set, or more than one.
    """
    if not os.path.isdir(folder):
        raise UsageError(
            ErrorCode.NOT_FOUND,
            f"there is no folder {folder}; "
            "give scenes, or the folder that holds a caption data set",
        )
    formats = list(marked_modules(__package__, "LOOKS_FOR").values())
    matches = [(layout, module) for module in formats if (layout := module.detect(folder))]
    if len(matches) != 1:
        several = " and ".join(
            f"{layout.format} ({layout.caption_files[0].name})" for layout, _ in matches
        )
        expected = "; ".join(module.LOOKS_FOR for module in formats)
        raise UsageError(
            ErrorCode.CONFLICT if several else ErrorCode.NOT_FOUND,
            f"{folder} holds {several or 'no known caption data set'}; keep the files of one "
            f"data set in a folder: {expected}",
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
        ErrorCode.NOT_FOUND,
        f"{captions} has no folder of images next to it; looked for {expected} in {folder}",
    )


def token_rows(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (image, caption) of lines such as `name.jpg#0<TAB>caption`."""
    for line in lines(path):
        if line.strip():
            label, _, text = line.partition("\t")
            yield label.rpartition("#")[0].strip(), text
