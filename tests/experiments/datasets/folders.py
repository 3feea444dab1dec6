"""Small data sets of captions on disk, in every published layout.

A writer returns the files that hold the captions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tracking.errors import ErrorCode, UsageError

TEXTS = ("a dog runs", "two brown dogs run fast")
IMAGES = 4
SPLITS = ("train", "restval", "val", "test")


@contextmanager
def refused(code: ErrorCode, *values: str) -> Iterator[None]:
    """Expect an error of this code, one printable line with these values."""
    with pytest.raises(UsageError) as error:
        yield
    text = str(error.value)
    assert (error.value.code, text.isprintable()) == (code, True), text
    assert all(value in text for value in values), text


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (64, 48)) -> None:
    """Write a small picture of noise, whose file is long enough to be cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def pictures(folder: Path, count: int = IMAGES) -> list[str]:
    """Write pictures. Return their names."""
    names = [f"{number}.jpg" for number in range(count)]
    for number, name in enumerate(names):
        picture(folder / name, number, (9, 7))
    return names


def kaggle(folder: Path, images: int = 10, captions: Sequence[str] = TEXTS) -> Path:
    """Write Flickr8k in Kaggle's form."""
    rows = ["image,caption"]
    for number in range(images):
        picture(folder / "Images" / f"{number}.jpg", number)
        rows += [f"{number}.jpg,{caption}" for caption in captions]
    (folder / "captions.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def write_kaggle(folder: Path, separator: str = ",", encoding: str = "utf-8") -> list[Path]:
    rows = [f"image{separator}caption"]
    names = pictures(folder / "Images")
    rows += [f'{name}{separator}"{text} , ok ."' for name in names for text in TEXTS]
    (folder / "captions.txt").write_text("\n".join(rows) + "\n", encoding=encoding)
    return [folder / "captions.txt"]


def write_flickr8k(folder: Path) -> list[Path]:
    names = pictures(folder / "Flicker8k_Dataset")
    rows = [f"{name}#{turn}\t{text} .\n" for name in names for turn, text in enumerate(TEXTS)]
    lists = {"train": names[:2], "dev": names[2:3], "test": names[3:]}
    contents = {"Flickr8k.token.txt": "".join(rows)}
    contents |= {f"Flickr_8k.{part}Images.txt": "\n".join(part_) for part, part_ in lists.items()}
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in contents]


def write_flickr30k(folder: Path) -> list[Path]:
    rows = ["image_name| comment_number| comment"]
    names = pictures(folder / "flickr30k_images")
    rows += [f"{name}| {turn}| {text} ." for name in names for turn, text in enumerate(TEXTS)]
    (folder / "results.csv").write_text("\n".join(rows), encoding="utf-8")
    return [folder / "results.csv"]


def write_flickr30k_tokens(folder: Path) -> list[Path]:
    names = pictures(folder / "flickr30k-images")
    rows = [f"{name}#{turn}\t{text} .\n" for name in names for turn, text in enumerate(TEXTS)]
    (folder / "results_20130124.token").write_text("".join(rows), encoding="utf-8")
    return [folder / "results_20130124.token"]


def write_coco(folder: Path) -> list[Path]:
    files = []
    for part, count in (("train2017", 3), ("val2017", 1)):
        names = pictures(folder / part, count)
        captions = [
            {"image_id": number, "id": 7, "caption": text}
            for number in range(count)
            for text in TEXTS
        ]
        images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
        content = {"annotations": captions, "info": {"nested": [1, {"a": "]"}]}, "images": images}
        content = dict(reversed(content.items())) if files else content
        files.append(folder / "annotations" / f"captions_{part}.json")
        files[-1].parent.mkdir(exist_ok=True)
        files[-1].write_text(json.dumps(content), encoding="utf-8")
    return files


def write_karpathy(folder: Path, name: str = "dataset_flickr8k.json") -> list[Path]:
    sentences = [{"raw": TEXTS[0]}, {"tokens": TEXTS[1].split()}]
    images: list[dict[str, object]] = []
    for number, split in enumerate(SPLITS):
        image = {"filename": f"{number}.jpg", "split": split, "sentences": sentences}
        below = "images"
        if name == "dataset_coco.json":  # it names a folder for each image
            below = "train2014" if split == "train" else "val2014"
            image["filepath"] = below
        picture(folder / below / f"{number}.jpg", number, (9, 7))
        images.append(image)
    (folder / name).write_text(json.dumps({"images": images}), encoding="utf-8")
    return [folder / name]


WRITERS: dict[str, Callable[[Path], list[Path]]] = {
    "Kaggle's Flickr8k": write_kaggle,
    "Kaggle's Flickr8k from Excel": partial(write_kaggle, separator="\t", encoding="utf-16"),
    "Flickr8k": write_flickr8k,
    "Flickr30k": write_flickr30k,
    "Flickr30k's tokens": write_flickr30k_tokens,
    "COCO": write_coco,
    "Karpathy": write_karpathy,
    "Karpathy's COCO": partial(write_karpathy, name="dataset_coco.json"),
}
