"""Published layouts of captions, each in a small copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.datasets.captions import CaptionData, index
from experiments.datasets.layouts import CaptionRow, SkipReason, find
from tests.experiments.datasets.folders import (
    TEXTS,
    WRITERS,
    kaggle,
    pictures,
    refused,
    write_coco,
    write_flickr8k,
    write_karpathy,
)
from tracking.errors import ErrorCode

NONE = [None] * 4
NAMED = ["train", "train", "validation", "test"]
# Folder of the first image, and the splits of the four images.
EXPECTED = {
    "Kaggle's Flickr8k": ("Images", NONE),
    "Kaggle's Flickr8k from Excel": ("Images", NONE),
    "Flickr8k": ("Flicker8k_Dataset", NAMED),
    "Flickr30k": ("flickr30k_images", NONE),
    "Flickr30k's tokens": ("flickr30k-images", NONE),
    "COCO": ("train2017", ["train", "train", "train", "validation"]),
    "Karpathy": ("images", NAMED),
    "Karpathy's COCO": ("train2014", NAMED),
}


def read_rows(folder: Path) -> tuple[list[tuple[str, str, str | None]], list[SkipReason]]:
    """Return captions, and the reasons of skipped rows."""
    layout, module = find(folder)
    rows = list(module.rows(layout))
    captions = [(row.image, row.text, row.split) for row in rows if isinstance(row, CaptionRow)]
    return captions, [row for row in rows if isinstance(row, SkipReason)]


def read(folder: Path, seed: int = 1) -> CaptionData:
    return index(str(folder), cache=folder / "cache", seed=seed)


@pytest.mark.parametrize("name", WRITERS)
def test_published_layouts_are_read(tmp_path: Path, name: str) -> None:
    folder, splits = EXPECTED[name]
    WRITERS[name](tmp_path)
    captions, skipped = read_rows(tmp_path)
    assert captions[0][0] == f"{folder}/0.jpg"
    assert captions[0][1].startswith(TEXTS[0])
    assert [split for _, _, split in captions[::2]] == splits
    assert len(captions) == 8
    assert skipped == []
    data = read(tmp_path)
    assert data.references(0)[0].split()[:2] == ["dog", "runs"]
    if splits != NONE:
        assert data.split.tolist() == [["train", "validation", "test"].index(s) for s in splits]
        # With its own split, another seed gives the same data, and no second entry.
        assert read(tmp_path, seed=2).digest == data.digest


def test_images_of_no_split_are_skipped(tmp_path: Path) -> None:
    write_flickr8k(tmp_path / "flickr8k")
    (tmp_path / "flickr8k" / "Flickr_8k.testImages.txt").unlink()
    assert read_rows(tmp_path / "flickr8k")[1] == [SkipReason.NOT_LISTED] * 2
    (path,) = write_karpathy(tmp_path / "karpathy")
    path.write_text(path.read_text().replace("restval", "spare"))
    assert read(tmp_path / "karpathy").dropped == {SkipReason.UNKNOWN_SPLIT: 2}


def test_broken_row_of_flickr30k_is_repaired(tmp_path: Path) -> None:
    pictures(tmp_path / "flickr30k_images")
    (tmp_path / "results.csv").write_text(
        "1.jpg| 0| Two guys , one | with a hat .\n 2.jpg| 4   A dog runs .\n3.jpg| 0\n"
    )
    captions, skipped = read_rows(tmp_path)
    assert [text for _, text, _ in captions] == ["Two guys , one | with a hat .", "A dog runs ."]
    assert skipped == [SkipReason.NO_CAPTION]


def test_coco_without_any_images_is_refused(tmp_path: Path) -> None:
    write_coco(tmp_path)
    for part in ("train2017", "val2017"):
        (tmp_path / part).rename(tmp_path / f"other_{part}")
    with refused(ErrorCode.NOT_FOUND):
        find(tmp_path)


def test_files_of_other_kinds_are_no_caption_files(tmp_path: Path) -> None:
    kaggle(tmp_path, images=2)
    (tmp_path / "dataset_folder.json").mkdir()
    assert len(read_rows(tmp_path)[0]) == 4
