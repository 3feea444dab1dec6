"""MS COCO captions: annotations/captions_train2017.json and captions_val2017.json (or 2014), read as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from experiments.datasets.files import json_items
from experiments.datasets.layouts import CaptionRow, Layout, Skipped, Split, caption_row
from tracking.errors import WrongCall

LOOKS_FOR = "annotations/captions_train2017.json or captions_val2017.json with train2017/ or val2017/ (MS COCO)"

_PARTS: dict[str, Split] = {"train": "train", "val": "validation"}
_TWO_FILES = Skipped("id of more than one image file")
_YEARS = ("2017", "2014")


def detect(folder: Path) -> Layout | None:
    """A part whose images were not fetched is left out. Raises WrongCall where that is so of every part."""
    for year in _YEARS:
        parts = [f"{part}{year}" for part in _PARTS]
        annotated = [part for part in parts if _annotations(folder, part).is_file()]
        present = [part for part in annotated if (folder / part).is_dir()]
        if annotated and not present:
            looked_for = ", ".join(f"{part}/" for part in annotated)
            raise WrongCall(
                f"{_annotations(folder, annotated[0])} has no folder of images; looked for {looked_for} in {folder}"
            )
        if present:
            return Layout(
                name="coco",
                format=f"MS COCO captions, {' and '.join(present)}",
                folder=folder,
                caption_files=tuple(_annotations(folder, part) for part in present),
                image_folders=tuple(folder / part for part in present),
                own_split=present == parts,
                row_example='{"image_id": 1, "caption": "…"} in "annotations"',
            )
    return None


def rows(layout: Layout) -> Iterator[CaptionRow | Skipped]:
    for captions, images in zip(layout.caption_files, layout.image_folders, strict=True):
        files = _files(captions)
        split = _PARTS[images.name[:-4]]
        for annotation in json_items(captions, "annotations"):
            known = annotation if isinstance(annotation, dict) else {}
            name = files.get(_id(known.get("image_id")))
            yield (
                name
                if isinstance(name, Skipped)
                else caption_row(images.name, name, known.get("caption"), split)
            )


def _files(captions: Path) -> dict[int | str | None, str | Skipped]:
    """Names of the images' files by id. Of an id that stands for two files nobody can say whose caption it is."""
    found: dict[int | str | None, str | Skipped] = {}
    for image in json_items(captions, "images"):
        if isinstance(image, dict) and isinstance(name := image.get("file_name"), str):
            known = _id(image.get("id"))
            found[known] = _TWO_FILES if found.get(known, name) != name else name
    found.pop(None, None)
    return found


def _id(value: object) -> int | str | None:
    """An id, or None of anything else: 1 and 1.0 are the same, true is none."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _annotations(folder: Path, part: str) -> Path:
    return folder / "annotations" / f"captions_{part}.json"
