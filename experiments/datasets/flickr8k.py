"""Flickr8k: Kaggle's captions.txt, or the original token file with its split lists."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from experiments.datasets.files import lines
from experiments.datasets.layouts import (
    CaptionRow,
    Layout,
    SkipReason,
    Split,
    caption_row,
    first_file,
    image_folder,
    token_rows,
)

LOOKS_FOR = "captions.txt or Flickr8k.token.txt with Images/ (Flickr8k)"

# Excel writes tabs as `Unicode Text`, and semicolons where a comma stands in numbers.
_HEADER = re.compile(r'\s*"?image"?\s*([,;\t])\s*"?caption"?\s*', re.IGNORECASE)
_LISTS: dict[Split, str] = {
    "train": "Flickr_8k.trainImages.txt",
    "validation": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}
FOLDERS = ("Images", "images", "Flicker8k_Dataset", "Flickr8k_Dataset")


def detect(folder: Path) -> Layout | None:
    captions = first_file(
        folder, "captions.txt", "Flickr8k.token.txt", "Flickr8k_text/Flickr8k.token.txt"
    )
    if captions is None:
        return None
    lists = _lists(captions.parent)
    kaggle = captions.name == "captions.txt"
    return Layout(
        name="flickr8k",
        format="Flickr8k, Kaggle's captions.txt" if kaggle else "Flickr8k, original token file",
        folder=folder,
        caption_files=(captions, *lists.values()),
        image_folders=(image_folder(folder, captions, *FOLDERS),),
        own_split="train" in lists and "validation" in lists,
        row_example="image.jpg,caption" if kaggle else "image.jpg#0<TAB>caption",
    )


def rows(layout: Layout) -> Iterator[CaptionRow | SkipReason]:
    """Skip images in no split list if there is a list for training (92 of the original's 8,092)."""
    captions = layout.caption_files[0]
    folder = layout.image_folders[0].relative_to(layout.folder).as_posix()
    splits = {
        image.strip(): split
        for split, path in _lists(captions.parent).items()
        for image in lines(path)
    }
    has_list = "train" in splits.values()
    is_kaggle = captions.name == "captions.txt"
    for image, text in _csv_rows(captions) if is_kaggle else token_rows(captions):
        row = caption_row(folder, image, text, splits.get(image))
        is_listed = image in splits or not has_list
        yield row if is_listed or isinstance(row, SkipReason) else SkipReason.NOT_LISTED


def _lists(folder: Path) -> dict[Split, Path]:
    return {split: folder / name for split, name in _LISTS.items() if (folder / name).is_file()}


def _csv_rows(path: Path) -> Iterator[tuple[str, str]]:
    separator = ","
    for line in lines(path):
        if header := _HEADER.fullmatch(line):
            separator = header[1]
        elif line.strip():
            # Line by line: a quotation mark that is never closed spoils one row, not the rest.
            try:
                fields = next(csv.reader([line], delimiter=separator), [""])
            except csv.Error:
                fields = [""]
            image, *texts = (field.strip() for field in fields)
            yield image, separator.join(texts)
