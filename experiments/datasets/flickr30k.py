"""Flickr30k: Kaggle's results.csv, or the original results_20130124.token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from experiments.datasets.files import lines
from experiments.datasets.layouts import (
    CaptionRow,
    Layout,
    SkipReason,
    caption_row,
    first_file,
    image_folder,
    token_rows,
)

LOOKS_FOR = "results.csv or results_20130124.token with flickr30k_images/ (Flickr30k)"

FOLDERS = ("flickr30k_images", "flickr30k-images", "Images", "images")
# Image 2199200615 has a row whose number and caption are not separated:
# `2199200615.jpg| 4   A dog runs across the grass .`
_UNSEPARATED = re.compile(r"\d+\s+(\S.*)")


def detect(folder: Path) -> Layout | None:
    captions = first_file(folder, "results.csv", "results_20130124.token")
    if captions is None:
        return None
    kaggle = captions.suffix == ".csv"
    return Layout(
        name="flickr30k",
        format="Flickr30k, Kaggle's results.csv" if kaggle else "Flickr30k, original token file",
        folder=folder,
        caption_files=(captions,),
        image_folders=(image_folder(folder, captions, *FOLDERS),),
        own_split=False,
        row_example="image.jpg| 0| caption" if kaggle else "image.jpg#0<TAB>caption",
    )


def rows(layout: Layout) -> Iterator[CaptionRow | SkipReason]:
    captions = layout.caption_files[0]
    folder = layout.image_folders[0].relative_to(layout.folder).as_posix()
    for image, text in _bar_rows(captions) if captions.suffix == ".csv" else token_rows(captions):
        yield caption_row(folder, image, text, None)


def _bar_rows(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (image, caption) of lines such as `image.jpg| 0| caption`."""
    for line in lines(path):
        image, _, rest = (part.strip() for part in line.partition("|"))
        if image == "image_name" or not line.strip():
            continue
        text = rest.partition("|")[2]
        if "|" not in rest and (unseparated := _UNSEPARATED.fullmatch(rest)):
            text = unseparated[1]
        yield image, text.strip()
