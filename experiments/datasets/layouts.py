"""What a folder of captions and images looks like; a format is a module of this package with `LOOKS_FOR`, `detect` and `rows`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Literal

from experiments.datasets import marked_modules
from experiments.datasets.files import lines
from tracking import plain
from tracking.errors import WrongCall

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class CaptionRow:
    """One caption; `image` is a path below the folder; `split` is None where the data set does not say."""

    image: str
    text: str
    split: Split | None


@dataclass(frozen=True)
class Skipped:
    """A row that gives no caption, and why; counted by reason."""

    reason: str


@dataclass(frozen=True)
class Layout:
    """A data set that was recognised: where its captions and images lie.

    own_split: the files themselves say which images are for training and which for validation.
    row_example: what a readable row looks like, for the message when there is none.
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
    """A row as a file has it: an image by its name below `folder`, which names that lead elsewhere do not get."""
    if not (isinstance(image, str) and isinstance(text, str) and image and text.strip()):
        return NO_CAPTION
    if image.startswith("/") or ".." in image.split("/"):
        return LEADS_OUT
    if plain.CONTROLS.search(image) or _NO_TEXT.search(text):
        return CONTROLS
    return CaptionRow(f"{folder}/{image}" if folder else image, text, split)


def find(folder: Path) -> tuple[Layout, ModuleType]:
    """The data set in a folder and the module that reads it. Raises WrongCall where there is none, or more than one."""
    try:
        there = folder.is_dir()
    except OSError as error:
        raise WrongCall(f"cannot read {folder}: {error.strerror}") from None
    if not there:
        raise WrongCall(
            f"there is no folder {folder}; give scenes, or the folder that holds a caption data set"
        )
    formats = list(marked_modules(__package__, "LOOKS_FOR").values())
    found = [
        (layout, module) for module in formats if (layout := module.detect(folder)) is not None
    ]
    if not found:
        looked_for = "; ".join(module.LOOKS_FOR for module in formats)
        raise WrongCall(
            f"{folder} holds no caption data set that is known here; looked for {looked_for}"
        )
    if len(found) > 1:
        several = " and ".join(
            f"{layout.format} ({layout.caption_files[0].name})" for layout, _ in found
        )
        raise WrongCall(
            f"{folder} holds more than one caption data set: {several}; keep the caption files of one only"
        )
    layout, module = found[0]
    return replace(layout, name=plain.line(layout.name), format=plain.line(layout.format)), module


def first_file(folder: Path, *names: str) -> Path | None:
    """The first of some files (paths below the folder) that is there."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def image_folder(folder: Path, captions: Path, *names: str) -> Path:
    """The first of some folders that is there; one that was unpacked into a folder of the same name is found too."""
    for name in names:
        for candidate in (folder / name / name, folder / name):
            if candidate.is_dir():
                return candidate
    looked_for = ", ".join(f"{name}/" for name in names)
    raise WrongCall(
        f"{captions} has no folder of images beside it; looked for {looked_for} in {folder}"
    )


def token_rows(path: Path) -> Iterator[tuple[str, str] | Skipped]:
    """(image, caption) of lines such as `name.jpg#0<TAB>caption`."""
    for line in lines(path):
        label, _, text = line.partition("\t")
        image = label.rpartition("#")[0].strip()
        if image and text.strip():
            yield image, text
        elif line.strip():
            yield NO_CAPTION
