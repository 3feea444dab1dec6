"""Karpathy and Fei-Fei's splits of Flickr8k, Flickr30k and COCO (CVPR 2015): dataset_*.json, read as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.datasets.files import json_items
from experiments.datasets.layouts import (
    NO_CAPTION,
    CaptionRow,
    Layout,
    Skipped,
    Split,
    caption_row,
    image_folder,
)
from tracking import plain

LOOKS_FOR = "dataset_*.json or dataset.json with a folder of images (Karpathy's splits)"

# `restval` is the part of COCO's validation set that is trained on.
_SPLITS: dict[str, Split] = {
    "train": "train",
    "restval": "train",
    "val": "validation",
    "test": "test",
}
_COCO = ("train2014", "val2014")
_IMAGES = (
    "images",
    "Images",
    "Flicker8k_Dataset",
    "Flickr8k_Dataset",
    "flickr30k_images",
    "flickr30k-images",
    *_COCO,
)


def detect(folder: Path) -> Layout | None:
    candidates = [*sorted(folder.glob("dataset_*.json")), *folder.glob("dataset.json")]
    captions = next((path for path in candidates if path.is_file()), None)
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
        name, below, part, sentences = (
            known.get(key) for key in ("filename", "filepath", "split", "sentences")
        )
        if not (
            isinstance(name, str)
            and name
            and isinstance(below, str | None)
            and isinstance(sentences, list)
            and sentences
        ):
            yield NO_CAPTION
            continue
        if not isinstance(part, str) or part not in _SPLITS:
            yield from [Skipped(f"unknown split {plain.short(repr(part))}")] * len(sentences)
            continue
        # A name that begins with / is to be seen as such, not to disappear behind a folder.
        path = f"{below}/{name}" if below and not name.startswith("/") else name
        folder = "" if below and top.name in _COCO else top.as_posix()
        yield from (
            caption_row(folder, path, _text(sentence), _SPLITS[part]) for sentence in sentences
        )


def _text(sentence: object) -> object:
    """The caption as it was written, or its words with spaces between; None of anything else."""
    known: dict[str, Any] = sentence if isinstance(sentence, dict) else {}
    raw, tokens = known.get("raw"), known.get("tokens")
    if not raw and isinstance(tokens, list) and all(isinstance(token, str) for token in tokens):
        return " ".join(tokens)
    return raw
