"""Karpathy and Fei-Fei's splits of Flickr8k, Flickr30k and COCO (CVPR 2015): dataset_*.json, read as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.datasets.files import json_items
from experiments.datasets.layouts import NO_CAPTION, CaptionRow, Layout, Skipped, Split, image_folder

LOOKS_FOR = "dataset_*.json or dataset.json with a folder of images (Karpathy's splits)"

# `restval` is the part of COCO's validation set that is trained on.
_SPLITS: dict[str, Split] = {"train": "train", "restval": "train", "val": "validation", "test": "test"}
_COCO = ("train2014", "val2014")
_IMAGES = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k_images", "flickr30k-images", *_COCO)


def detect(folder: Path) -> Layout | None:
    captions = next(iter([*sorted(folder.glob("dataset_*.json")), *folder.glob("dataset.json")]), None)
    if captions is None:
        return None
    top = image_folder(folder, captions, *_IMAGES)
    coco = tuple(folder / name for name in _COCO if (folder / name).is_dir())
    return Layout(
        name=captions.stem.removeprefix("dataset_") if captions.stem != "dataset" else "karpathy",
        format=f"Karpathy's splits, {captions.name}",
        folder=folder,
        caption_files=(captions,),
        image_folders=coco if top in coco else (top,),
        own_split=True,
        row_example='{"filename": "image.jpg", "split": "train", "sentences": [{"raw": "…"}]} in "images"',
    )


def rows(layout: Layout) -> Iterator[CaptionRow | Skipped]:
    """COCO's `filepath` names the folder of an image; the other data sets have one folder."""
    top = layout.image_folders[0].relative_to(layout.folder)
    for image in json_items(layout.caption_files[0], "images"):
        known: dict[str, Any] = image if isinstance(image, dict) else {}
        split = _SPLITS.get(known.get("split", ""))
        sentences = known.get("sentences", [])
        if "filename" not in known or not sentences:
            yield NO_CAPTION
            continue
        if split is None:
            yield from [Skipped(f"unknown split {known.get('split')!r}")] * len(sentences)
            continue
        below = known.get("filepath", "")
        path = Path("" if below and top.name in _COCO else top, below, known["filename"])
        for sentence in sentences:
            text = sentence.get("raw") or " ".join(sentence.get("tokens", []))
            yield CaptionRow(path.as_posix(), text, split) if text else NO_CAPTION
