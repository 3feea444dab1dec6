"""Karpathy and Fei-Fei's splits of Flickr8k, Flickr30k and COCO (CVPR 2015): dataset_*.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.datasets import flickr8k, flickr30k, layouts
from experiments.datasets.files import json_arrays
from experiments.datasets.layouts import CaptionRow, Layout, SkipReason, Split, caption_row

LOOKS_FOR = "dataset_*.json or dataset.json with a folder of images (Karpathy's splits)"

# `restval` is the part of COCO's validation set that is trained on.
_SPLITS: dict[str, Split] = {
    "train": "train",
    "restval": "train",
    "val": "validation",
    "test": "test",
}
_COCO = ("train2014", "val2014")
_FOLDERS = (*flickr8k.FOLDERS, *flickr30k.FOLDERS, *_COCO)


def detect(folder: Path) -> Layout | None:
    candidates = [*sorted(folder.glob("dataset_*.json")), *folder.glob("dataset.json")]
    captions = next((path for path in candidates if path.is_file()), None)
    if captions is None:
        return None
    top = layouts.image_folder(folder, captions, *_FOLDERS)
    coco = tuple(folder / name for name in _COCO if (folder / name).is_dir())
    return Layout(
        name=captions.stem.removeprefix("dataset_") if captions.stem != "dataset" else "karpathy",
        format=f"Karpathy's splits, {captions.name}",
        folder=folder,
        caption_files=(captions,),
        image_folders=coco if top in coco else (top,),
        own_split=True,
        row_example='{"filename": "image.jpg", "split": "train", "sentences": [{"raw": "…"}]} '
        'in "images"',
    )


def rows(layout: Layout) -> Iterator[CaptionRow | SkipReason]:
    """Yield rows; COCO's `filepath` names an image's folder, other data sets have one folder."""
    top = layout.image_folders[0].relative_to(layout.folder)
    for image in json_arrays(layout.caption_files[0], "images")[0]:
        fields: dict[str, Any] = image if isinstance(image, dict) else {}
        name, below = fields.get("filename"), fields.get("filepath")
        sentences = fields.get("sentences")
        if not (isinstance(name, str) and isinstance(below, str | None)) or not (
            isinstance(sentences, list) and sentences
        ):
            yield SkipReason.NO_CAPTION
            continue
        split = _SPLITS.get(str(fields.get("split")))
        # A name that begins with / is refused as such: no folder goes before it.
        path = f"{below}/{name}" if below and not name.startswith("/") else name
        folder = "" if below and top.name in _COCO else top.as_posix()
        for sentence in sentences:
            row = caption_row(folder, path, _caption(sentence), split)
            yield row if split else SkipReason.UNKNOWN_SPLIT


def _caption(sentence: object) -> object:
    fields: dict[str, Any] = sentence if isinstance(sentence, dict) else {}
    raw, tokens = fields.get("raw"), fields.get("tokens")
    if not raw and isinstance(tokens, list) and all(isinstance(token, str) for token in tokens):
        return " ".join(tokens)
    return raw
