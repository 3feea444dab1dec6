"""Conceptual Captions: lines `caption<TAB>url`, joined with the images that were fetched.

An image belongs to a line if its file's stem is the line's number from 0 (with leading zeros or
without), else if its name is the last part of the url's path. Images may lie in subfolders. Lines
whose image is missing are counted and not used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from urllib.parse import unquote, urlsplit

from experiments.datasets.files import lines
from experiments.datasets.layouts import (
    CaptionRow,
    Layout,
    SkipReason,
    Split,
    caption_row,
    image_folder,
)
from tracking.errors import UsageError

LOOKS_FOR = "*.tsv of caption<TAB>url with images/ (Conceptual Captions)"

_LOOKED_AT_LINES = 5


def detect(folder: Path) -> Layout | None:
    """Recognise one file, or several with image folders named like the files' stems."""
    files = tuple(
        path for path in sorted(folder.glob("*.tsv")) if path.is_file() and _has_urls(path)
    )
    if not files:
        return None
    shared = ("images", "Images") if len(files) == 1 else ()
    splits = {_split(path) for path in files}
    return Layout(
        name="conceptual",
        format=f"Conceptual Captions, {' and '.join(path.name for path in files)}",
        folder=folder,
        caption_files=files,
        image_folders=tuple(image_folder(folder, path, path.stem, *shared) for path in files),
        own_split={"train", "validation"} <= splits,
        row_example="caption<TAB>http://…/image.jpg",
    )


def rows(layout: Layout) -> Iterator[CaptionRow | SkipReason]:
    for captions, images in zip(layout.caption_files, layout.image_folders, strict=True):
        by_number, by_name = _fetched(images, layout.folder)
        split = _split(captions) if layout.own_split else None
        for number, line in enumerate(lines(captions)):
            text, _, url = line.partition("\t")
            image = by_number.get(number) or by_name.get(_file_name(url))
            if text.strip() and url.strip() and not image:
                yield SkipReason.NOT_FETCHED
            else:
                yield caption_row("", image if url.strip() else None, text, split)


def _has_urls(path: Path) -> bool:
    with suppress(UsageError):  # not a text file
        first_lines = islice(lines(path), _LOOKED_AT_LINES)
        urls = [line.partition("\t")[2].strip().lower() for line in first_lines]
        return any(url.startswith("http") for url in urls)
    return False


def _split(path: Path) -> Split:
    return "validation" if "valid" in path.stem.lower() else "train"


def _file_name(url: str) -> str:
    try:
        return unquote(urlsplit(url.strip()).path).rpartition("/")[2]
    except ValueError:  # not a URL, as `http://[`
        return ""


def _fetched(images: Path, below: Path) -> tuple[dict[int, str], dict[str, str]]:
    by_number: dict[int, str] = {}
    by_name: dict[str, str] = {}
    for folder, folders, names in os.walk(images):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name).relative_to(below).as_posix()
            stem = Path(name).stem
            if stem.isdecimal():
                by_number.setdefault(int(stem), path)
            by_name.setdefault(name, path)
    return by_number, by_name
