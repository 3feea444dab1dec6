"""Small data sets on disk, in every format, for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (64, 48)) -> None:
    """Write a small picture of noise, whose file is long enough to be cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def kaggle(
    folder: Path,
    images: int = 10,
    captions: Sequence[str] = ("a dog runs", "two brown dogs run fast"),
) -> Path:
    """Write Flickr8k in Kaggle's form."""
    rows = ["image,caption"]
    for number in range(images):
        picture(folder / "Images" / f"{number}.jpg", number)
        rows += [f"{number}.jpg,{caption}" for caption in captions]
    (folder / "captions.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder
