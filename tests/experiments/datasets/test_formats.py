"""Published layouts of captions, each in a small copy."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from experiments.datasets.captions import CaptionData, index
from experiments.datasets.layouts import CaptionRow, SkipReason, find
from tests.experiments.datasets.folders import kaggle, picture
from tracking.errors import ErrorCode, UsageError

SENTENCES = [{"raw": "A dog."}, {"tokens": ["one", "dog"]}]


def read_rows(folder: Path) -> tuple[list[tuple[str, str, str | None]], list[SkipReason]]:
    """Return captions, and the reasons of skipped rows."""
    layout, module = find(folder)
    rows = list(module.rows(layout))
    captions = [(row.image, row.text, row.split) for row in rows if isinstance(row, CaptionRow)]
    return captions, [row for row in rows if isinstance(row, SkipReason)]


def read(folder: Path, seed: int = 1) -> CaptionData:
    return index(str(folder), cache=folder / "cache", seed=seed)


def pictures(folder: Path, names: Iterable[str]) -> None:
    for number, name in enumerate(names):
        picture(folder / name, number)


def test_flickr8k_with_split_lists(tmp_path: Path) -> None:
    names = [f"{number}.jpg" for number in range(5)]
    pictures(tmp_path / "Flicker8k_Dataset", names)
    rows = [f"{name}#{turn}\tA dog runs number{turn} .\n" for name in names for turn in range(2)]
    (tmp_path / "Flickr8k.token.txt").write_text("".join(rows))
    assert read_rows(tmp_path)[0][:2] == [
        ("Flicker8k_Dataset/0.jpg", "A dog runs number0 .", None),
        ("Flicker8k_Dataset/0.jpg", "A dog runs number1 .", None),
    ]
    for part, listed in {"train": "0.jpg\n1.jpg\n", "dev": "2.jpg\n", "test": "3.jpg\n"}.items():
        (tmp_path / f"Flickr_8k.{part}Images.txt").write_text(listed)
    captions, skipped = read_rows(tmp_path)
    splits = ["train", "train", "validation", "test"]
    assert [split for _, _, split in captions[::2]] == splits
    assert skipped == [SkipReason.NOT_LISTED] * 2
    data = read(tmp_path)
    assert data.split.tolist() == [0, 0, 1, 2]
    # With its own split, another seed gives the same data, and no second entry.
    assert read(tmp_path, seed=2).digest == data.digest


def test_flickr30k_of_kaggle_with_its_broken_row(tmp_path: Path) -> None:
    pictures(tmp_path / "flickr30k_images", ["1.jpg", "2199200615.jpg"])
    (tmp_path / "results.csv").write_text(
        "image_name| comment_number| comment\n"
        "1.jpg| 0| Two guys , one | with a hat .\n"
        " 2199200615.jpg| 3| A dog sits .\n"
        " 2199200615.jpg| 4   A dog runs across the grass .\n"
        "3.jpg| 0\n"
    )
    captions, skipped = read_rows(tmp_path)
    assert captions == [
        ("flickr30k_images/1.jpg", "Two guys , one | with a hat .", None),
        ("flickr30k_images/2199200615.jpg", "A dog sits .", None),
        ("flickr30k_images/2199200615.jpg", "A dog runs across the grass .", None),
    ]
    assert skipped == [SkipReason.NO_CAPTION]


def test_flickr30k_as_published(tmp_path: Path) -> None:
    pictures(tmp_path / "flickr30k-images", ["1.jpg", "2.jpg"])
    (tmp_path / "results_20130124.token").write_text("1.jpg#0\tTwo guys .\n2.jpg#0\tA dog .\n")
    captions = [("1.jpg", "Two guys ."), ("2.jpg", "A dog .")]
    expected = [(f"flickr30k-images/{image}", text, None) for image, text in captions]
    assert read_rows(tmp_path)[0] == expected
    assert read(tmp_path).name == "flickr30k"


@pytest.mark.parametrize("is_reversed", [False, True])
def test_coco_in_any_order(tmp_path: Path, is_reversed: bool) -> None:
    (tmp_path / "annotations").mkdir()
    for part, count in (("train2017", 3), ("val2017", 2)):
        names = {number: f"{number:012d}.jpg" for number in range(1, count + 1)}
        pictures(tmp_path / part, names.values())
        captions = [f'A dog, "{part}" {turn}.' for turn in range(2)]
        content: dict[str, Any] = {
            "info": {"year": 2017, "nested": [1, {"a": "]"}]},
            "images": [{"id": number, "file_name": name} for number, name in names.items()],
            "annotations": [
                {"image_id": number, "caption": text} for text in captions for number in names
            ],
        }
        content = dict(reversed(content.items())) if is_reversed else content
        (tmp_path / "annotations" / f"captions_{part}.json").write_text(json.dumps(content))
    first = ("train2017/000000000001.jpg", 'A dog, "train2017" 0.', "train")
    assert read_rows(tmp_path)[0][0] == first
    data = read(tmp_path)
    assert data.split.tolist() == [0, 0, 0, 1, 1]
    assert data.references(4) == ["dog val2017 0", "dog val2017 1"]
    for part in ("train2017", "val2017"):
        (tmp_path / part).rename(tmp_path / f"other_{part}")
    with pytest.raises(UsageError) as error:
        find(tmp_path)
    assert error.value.code is ErrorCode.NOT_FOUND


def test_karpathys_splits(tmp_path: Path) -> None:
    pictures(tmp_path / "images", [f"{number}.jpg" for number in range(4)])
    images = [
        {"filename": f"{number}.jpg", "split": split, "sentences": SENTENCES}
        for number, split in enumerate(["train", "restval", "val", "test", "spare"])
    ]
    (tmp_path / "dataset_flickr8k.json").write_text(json.dumps({"images": images}))
    captions, skipped = read_rows(tmp_path)
    assert [split for _, _, split in captions[::2]] == ["train", "train", "validation", "test"]
    assert captions[1] == ("images/0.jpg", "one dog", "train")
    assert skipped == [SkipReason.UNKNOWN_SPLIT] * 2
    data = read(tmp_path)
    assert (data.name, data.split.tolist()) == ("flickr8k", [0, 0, 1, 2])
    assert data.dropped == {SkipReason.UNKNOWN_SPLIT: 2}


def test_karpathys_coco_names_the_folder_of_each_image(tmp_path: Path) -> None:
    paths = {"train": ("train2014", "1.jpg"), "val": ("val2014", "2.jpg")}
    for folder, name in paths.values():
        pictures(tmp_path / folder, [name])
    images = [
        {"filepath": folder, "filename": name, "split": split, "sentences": SENTENCES}
        for split, (folder, name) in paths.items()
    ]
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": images}))
    captions, _ = read_rows(tmp_path)
    assert [image for image, _, _ in captions[::2]] == ["train2014/1.jpg", "val2014/2.jpg"]
    assert read(tmp_path).split.tolist() == [0, 1]


def test_files_of_other_kinds_are_no_caption_files(tmp_path: Path) -> None:
    kaggle(tmp_path, images=2)
    (tmp_path / "scores.tsv").write_bytes(b"caf\xe9\t1\n" * 9)
    (tmp_path / "folder.tsv").mkdir()
    (tmp_path / "dataset_folder.json").mkdir()
    assert len(read_rows(tmp_path)[0]) == 4


def test_conceptual_captions_by_row_number_or_name(tmp_path: Path) -> None:
    pictures(tmp_path / "images", ["00000/000000000.jpg", "3.png", "red dog.jpg"])
    (tmp_path / "Train_GCC-training.tsv").write_text(
        "first dog\thttp://a.org/x.jpg\n"
        "second dog\thttps://a.org/photos/red%20dog.jpg?size=2\n"
        "third dog\thttp://a.org/absent.jpg\n"
        "fourth dog\thttp://a.org/y.jpg\n"
        "no url\n"
    )
    captions, skipped = read_rows(tmp_path)
    assert captions == [
        ("images/00000/000000000.jpg", "first dog", None),
        ("images/red dog.jpg", "second dog", None),
        ("images/3.png", "fourth dog", None),
    ]
    assert skipped == [SkipReason.NOT_FETCHED, SkipReason.NO_CAPTION]
    assert read(tmp_path).dropped == dict.fromkeys(skipped, 1)


def test_two_files_of_conceptual_captions_are_two_splits(tmp_path: Path) -> None:
    for stem in ("Train", "Validation"):
        (tmp_path / f"{stem}.tsv").write_text("one dog\thttp://a.org/x.jpg\n")
        pictures(tmp_path / stem, ["0.jpg"])
    assert read_rows(tmp_path)[0] == [
        ("Train/0.jpg", "one dog", "train"),
        ("Validation/0.jpg", "one dog", "validation"),
    ]
