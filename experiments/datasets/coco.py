"""MS COCO captions: annotations/captions_train2017.json and captions_val2017.json (or 2014)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.datasets.files import json_arrays
from experiments.datasets.layouts import CaptionRow, Layout, SkipReason, Split, caption_row
from tracking.errors import ErrorCode, UsageError

LOOKS_FOR = (
    "annotations/captions_train2017.json or captions_val2017.json "
    "with train2017/ or val2017/ (MS COCO)"
)

_PARTS: dict[str, Split] = {"train": "train", "val": "validation"}


def detect(folder: Path) -> Layout | None:
    """Leave out a part whose images were not fetched; raise UsageError if no part has images."""
    for year in ("2017", "2014"):
        files = {
            f"{part}{year}": folder / "annotations" / f"captions_{part}{year}.json"
            for part in _PARTS
        }
        annotated = [part for part, path in files.items() if path.is_file()]
        present = [part for part in annotated if (folder / part).is_dir()]
        if annotated and not present:
            expected = ", ".join(f"{part}/" for part in annotated)
            raise UsageError(
                ErrorCode.NOT_FOUND,
                f"{files[annotated[0]]} has no folder of images; looked for {expected} in {folder}",
            )
        if present:
            return Layout(
                name="coco",
                format=f"MS COCO captions, {' and '.join(present)}",
                folder=folder,
                caption_files=tuple(files[part] for part in present),
                image_folders=tuple(folder / part for part in present),
                own_split=present == list(files),
                row_example='{"image_id": 1, "caption": "…"} in "annotations"',
            )
    return None


def rows(layout: Layout) -> Iterator[CaptionRow | SkipReason]:
    for captions, folder in zip(layout.caption_files, layout.image_folders, strict=True):
        images, annotations = json_arrays(captions, "images", "annotations")
        names = _file_names(images)
        split = _PARTS[folder.name[:-4]]
        for annotation in annotations:
            fields = annotation if isinstance(annotation, dict) else {}
            name = names.get(_image_id(fields.get("image_id")))
            if isinstance(name, SkipReason):
                yield name
            else:
                yield caption_row(folder.name, name, fields.get("caption"), split)


def _file_names(images: list[Any]) -> dict[float | str | None, str]:
    """Return the images' files by id; an id of two files does not tell whose a caption is."""
    names: dict[float | str | None, str] = {}
    for image in images:
        if isinstance(image, dict) and isinstance(name := image.get("file_name"), str):
            number = _image_id(image.get("id"))
            names[number] = SkipReason.TWO_FILES if names.get(number, name) != name else name
    names.pop(None, None)
    return names


def _image_id(value: object) -> float | str | None:
    return value if isinstance(value, int | float | str) else None
