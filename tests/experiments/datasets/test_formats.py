from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from experiments.datasets.captions import CaptionData, index
from experiments.datasets.layouts import CaptionRow, Skipped, find
from tests.experiments.datasets.folders import kaggle, picture
from tracking.errors import UsageError


def _rows(folder: Path) -> list[CaptionRow | Skipped]:
    layout, module = find(folder)
    return list(module.rows(layout))


def _captions(folder: Path) -> list[tuple[str, str, str | None]]:
    return [
        (row.image, row.text, row.split) for row in _rows(folder) if isinstance(row, CaptionRow)
    ]


def _skipped(folder: Path) -> list[str]:
    return [row.reason for row in _rows(folder) if isinstance(row, Skipped)]


def _index(folder: Path, tmp_path: Path, **options: Any) -> CaptionData:
    return index(str(folder), cache=tmp_path / "cache", seed=1, **options)


def _pictures(folder: Path, names: Iterable[str]) -> None:
    for number, name in enumerate(names):
        picture(folder / name, number)


class TestFlickr8kOriginal:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "data"
        names = [f"{number}.jpg" for number in range(5)]
        _pictures(folder / "Flicker8k_Dataset", names)
        tokens = "".join(
            f"{name}#{turn}\tA dog runs number{turn} .\n" for name in names for turn in range(2)
        )
        (folder / "Flickr8k.token.txt").write_text(tokens)
        return folder

    def _lists(self, folder: Path, **parts: str) -> None:
        for part, names in parts.items():
            (folder / f"Flickr_8k.{part}Images.txt").write_text(
                "".join(f"{name}\n" for name in names.split())
            )

    def test_rows(self, folder: Path) -> None:
        assert _captions(folder)[:2] == [
            ("Flicker8k_Dataset/0.jpg", "A dog runs number0 .", None),
            ("Flicker8k_Dataset/0.jpg", "A dog runs number1 .", None),
        ]

    def test_split_lists(self, folder: Path, tmp_path: Path) -> None:
        self._lists(folder, train="0.jpg 1.jpg", dev="2.jpg", test="3.jpg")
        assert {image[-5:]: split for image, _, split in _captions(folder)} == {
            "0.jpg": "train",
            "1.jpg": "train",
            "2.jpg": "validation",
            "3.jpg": "test",
        }
        assert _skipped(folder) == ["image in no split list"] * 2
        data = _index(folder, tmp_path)
        assert data.split.tolist() == [0, 0, 1, 2]
        # The split is given: another seed gives the same data, and no second entry.
        assert index(str(folder), cache=tmp_path / "cache", seed=2).digest == data.digest


class TestFlickr30k:
    def test_kaggle_with_its_broken_row(self, tmp_path: Path) -> None:
        _pictures(tmp_path / "flickr30k_images", ["1.jpg", "2199200615.jpg"])
        (tmp_path / "results.csv").write_text(
            "image_name| comment_number| comment\n"
            "1.jpg| 0| Two guys , one | with a hat .\n"
            " 2199200615.jpg| 3| A dog sits .\n"
            " 2199200615.jpg| 4   A dog runs across the grass .\n"
            "3.jpg| 0\n"
        )
        assert _captions(tmp_path) == [
            ("flickr30k_images/1.jpg", "Two guys , one | with a hat .", None),
            ("flickr30k_images/2199200615.jpg", "A dog sits .", None),
            ("flickr30k_images/2199200615.jpg", "A dog runs across the grass .", None),
        ]
        assert len(_skipped(tmp_path)) == 1

    def test_original(self, tmp_path: Path) -> None:
        _pictures(tmp_path / "flickr30k-images", ["1.jpg", "2.jpg"])
        (tmp_path / "results_20130124.token").write_text("1.jpg#0\tTwo guys .\n2.jpg#0\tA dog .\n")
        assert _captions(tmp_path) == [
            ("flickr30k-images/1.jpg", "Two guys .", None),
            ("flickr30k-images/2.jpg", "A dog .", None),
        ]
        assert _index(tmp_path, tmp_path).name == "flickr30k"


class TestCoco:
    def _part(
        self, folder: Path, part: str, images: int, *, annotations_first: bool = False
    ) -> None:
        names = {number + 1: f"{number + 1:012d}.jpg" for number in range(images)}
        _pictures(folder / part, names.values())
        content: dict[str, Any] = {
            "info": {"year": 2017, "nested": [1, {"a": "]"}]},
            "images": [
                {"id": number, "file_name": name, "height": 48} for number, name in names.items()
            ],
            "licenses": [],
            "annotations": [
                {"image_id": number, "id": 9, "caption": f'A dog, "{part}" {turn}.'}
                for turn in range(2)
                for number in names
            ],
        }
        if annotations_first:
            content = dict(reversed(content.items()))
        (folder / "annotations").mkdir(exist_ok=True)
        (folder / "annotations" / f"captions_{part}.json").write_text(json.dumps(content))

    @pytest.mark.parametrize("annotations_first", [False, True])
    def test_own_split(self, tmp_path: Path, annotations_first: bool) -> None:
        self._part(tmp_path, "train2017", 3, annotations_first=annotations_first)
        self._part(tmp_path, "val2017", 2, annotations_first=annotations_first)
        assert _captions(tmp_path)[0] == (
            "train2017/000000000001.jpg",
            'A dog, "train2017" 0.',
            "train",
        )
        data = _index(tmp_path, tmp_path)
        assert data.split.tolist() == [0, 0, 0, 1, 1]
        assert data.references(4) == ["dog val2017 0", "dog val2017 1"]

    def test_annotations_without_any_images(self, tmp_path: Path) -> None:
        self._part(tmp_path, "val2017", 2)
        (tmp_path / "val2017").rename(tmp_path / "other")
        with pytest.raises(UsageError, match="has no folder of images; looked for val2017/"):
            find(tmp_path)


class TestKarpathy:
    def _write(self, folder: Path, name: str, images: list[dict[str, Any]]) -> None:
        (folder / name).write_text(json.dumps({"images": images, "dataset": "test"}))

    def test_splits(self, tmp_path: Path) -> None:
        _pictures(tmp_path / "images", [f"{number}.jpg" for number in range(4)])
        splits = ["train", "restval", "val", "test"]
        images = [
            {
                "filename": f"{number}.jpg",
                "split": split,
                "sentences": [{"raw": f"A {split} dog."}, {"tokens": ["one", "dog"]}],
            }
            for number, split in enumerate(splits)
        ]
        self._write(
            tmp_path,
            "dataset_flickr8k.json",
            [*images, {"filename": "9.jpg", "split": "spare", "sentences": [{"raw": "x"}]}],
        )
        assert [split for _, _, split in _captions(tmp_path)[::2]] == [
            "train",
            "train",
            "validation",
            "test",
        ]
        assert _captions(tmp_path)[1] == ("images/0.jpg", "one dog", "train")
        data = _index(tmp_path, tmp_path)
        assert data.split.tolist() == [0, 0, 1, 2]
        assert data.name == "flickr8k"
        assert data.dropped == {"unknown split 'spare'": 1}

    def test_coco_names_the_folder_of_each_image(self, tmp_path: Path) -> None:
        _pictures(tmp_path / "train2014", ["1.jpg"])
        _pictures(tmp_path / "val2014", ["2.jpg"])
        images = [
            {
                "filepath": "train2014",
                "filename": "1.jpg",
                "split": "train",
                "sentences": [{"raw": "one dog"}],
            },
            {
                "filepath": "val2014",
                "filename": "2.jpg",
                "split": "val",
                "sentences": [{"raw": "two dogs"}],
            },
        ]
        self._write(tmp_path, "dataset_coco.json", images)
        assert [image for image, _, _ in _captions(tmp_path)] == [
            "train2014/1.jpg",
            "val2014/2.jpg",
        ]
        assert _index(tmp_path, tmp_path).split.tolist() == [0, 1]


class TestConceptual:
    def test_what_is_no_caption_file_may_be_anything(self, tmp_path: Path) -> None:
        folder = kaggle(tmp_path / "data", images=2)
        (folder / "scores.tsv").write_bytes(b"caf\xe9\t1\n" * 9)
        (folder / "folder.tsv").mkdir()
        (folder / "dataset_folder.json").mkdir()
        assert len(_captions(folder)) == 4

    def test_images_by_row_number_or_name(self, tmp_path: Path) -> None:
        _pictures(tmp_path / "images", ["00000/000000000.jpg", "3.png", "red dog.jpg"])
        (tmp_path / "Train_GCC-training.tsv").write_text(
            "first dog\thttp://a.org/x.jpg\n"
            "second dog\thttps://a.org/photos/red%20dog.jpg?size=2\n"
            "third dog\thttp://a.org/absent.jpg\n"
            "fourth dog\thttp://a.org/y.jpg\n"
            "no url\n"
        )
        assert _captions(tmp_path) == [
            ("images/00000/000000000.jpg", "first dog", None),
            ("images/red dog.jpg", "second dog", None),
            ("images/3.png", "fourth dog", None),
        ]
        assert _index(tmp_path, tmp_path).dropped == {
            "image was not fetched": 1,
            "row without an image or a caption": 1,
        }

    def test_two_files_are_two_splits(self, tmp_path: Path) -> None:
        for stem in ("Train", "Validation"):
            (tmp_path / f"{stem}.tsv").write_text("one dog\thttp://a.org/x.jpg\n")
            _pictures(tmp_path / stem, ["0.jpg"])
        assert _captions(tmp_path) == [
            ("Train/0.jpg", "one dog", "train"),
            ("Validation/0.jpg", "one dog", "validation"),
        ]
