from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.datasets.captions import CaptionData, index
from experiments.datasets.layouts import SPLITS
from tests.experiments.datasets.folders import kaggle, picture
from tracking.errors import ErrorCode, UsageError


def read(folder: Path, cache: Path, seed: int = 1, **options: object) -> CaptionData:
    return index(str(folder), cache=cache, seed=seed, **options)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return kaggle(tmp_path / "data")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_captions_become_arrays(folder: Path, cache: Path) -> None:
    data = read(folder, cache)
    assert data.length == 7  # the longest caption has five words, and two marks
    words = {"dog", "runs", "two", "brown", "dogs", "run", "fast"}
    assert data.vocabulary.size == len(words) + 2 + 1
    assert (data.tokens.dtype, data.tokens.shape) == (np.int32, (20, 7))
    assert data.tokens.max() < data.vocabulary.size
    np.testing.assert_array_equal(data.caption_image, np.repeat(np.arange(10), 2))
    assert data.references(3) == ["dog runs", "two brown dogs run fast"]
    assert data.images[3] == "Images/3.jpg"


def test_captions_of_an_image_are_adjacent(folder: Path, cache: Path) -> None:
    rows = [f"{at % 10}.jpg,caption number{at // 10} of{at % 10}" for at in range(20)]
    (folder / "captions.txt").write_text("image,caption\n" + "\n".join(rows))
    data = read(folder, cache)
    for image in (0, 9):
        expected = [f"caption number{turn} of{image}" for turn in range(2)]
        assert data.references(image) == expected


def test_split_is_85_to_15_by_seed(tmp_path: Path, cache: Path) -> None:
    folder = kaggle(tmp_path / "data", images=40)
    first, again = read(folder, cache), read(folder, cache / "elsewhere")
    assert [len(first.images_of(split)) for split in SPLITS] == [34, 6, 0]
    np.testing.assert_array_equal(first.split, again.split)
    assert not np.array_equal(first.split, read(folder, cache, seed=2).split)
    captions = first.captions_of("train")
    assert set(captions).isdisjoint(first.captions_of("validation"))
    assert len(captions) == 68


def test_split_of_the_data_set_can_be_set_aside(tmp_path: Path, cache: Path) -> None:
    entries = []
    for number, split in enumerate(["test"] * 5 + ["val"] * 5 + ["train"] * 10):
        picture(tmp_path / "set" / "Images" / f"{number}.jpg", number)
        sentences = [{"raw": "brown dog"}]
        entries.append({"filename": f"{number}.jpg", "split": split, "sentences": sentences})
    (tmp_path / "set" / "dataset.json").write_text(json.dumps({"images": entries}))
    named, drawn = (read(tmp_path / "set", cache, own_split=own) for own in (True, False))
    assert [len(named.images_of(split)) for split in SPLITS] == [10, 5, 5]
    assert [len(drawn.images_of(split)) for split in SPLITS] == [17, 3, 0]
    assert drawn.digest != named.digest


def test_digest_is_of_the_content(folder: Path, tmp_path: Path, cache: Path) -> None:
    same = kaggle(tmp_path / "copy")
    digest = read(folder, cache).digest
    assert read(same, cache).digest == digest
    assert read(folder, cache, seed=2).digest != digest
    (same / "captions.txt").write_text((same / "captions.txt").read_text().replace("fast", "slow"))
    assert read(same, cache).digest != digest
    same.rename(tmp_path / "moved")
    assert read(tmp_path / "moved", cache).source == str(tmp_path / "moved")
    picture(folder / "Images" / "3.jpg", seed=99, size=(40, 40))
    assert read(folder, cache).digest != digest


def test_broken_images_are_left_out_up_to_a_share(folder: Path, cache: Path) -> None:
    images = folder / "Images"
    (images / "1.jpg").unlink()
    (images / "2.jpg").write_bytes(b"")
    (images / "3.jpg").write_text("this is no picture")
    content = (images / "4.jpg").read_bytes()
    (images / "4.jpg").write_bytes(content[: len(content) // 2])
    data = read(folder, cache, max_broken=0.5)
    assert [path for path, _ in data.broken] == [f"Images/{number}.jpg" for number in (1, 2, 3, 4)]
    assert all(reason for _, reason in data.broken)
    assert (len(data.images), len(data.tokens), data.caption_image.max()) == (6, 12, 5)
    with pytest.raises(UsageError) as error:
        read(folder, cache)
    assert error.value.code is ErrorCode.UNREADABLE
    for value in ("4 of 10", "Images/1.jpg", "max_broken_images", "0.01"):
        assert value in str(error.value)


def test_folders_without_usable_captions_are_refused(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "empty").mkdir()
    two, headless, pictureless = (kaggle(tmp_path / name) for name in ("two", "none", "gone"))
    (two / "results.csv").write_text("image_name| comment_number| comment\n")
    (headless / "captions.txt").write_text("image,caption\nnothing\n")
    (pictureless / "Images").rename(pictureless / "Pictures")
    formats = ["captions_train2017.json", "dataset_*.json", "*.tsv"]
    cases = {
        tmp_path / "empty": (ErrorCode.NOT_FOUND, formats),
        tmp_path / "nowhere": (ErrorCode.NOT_FOUND, []),
        two: (ErrorCode.CONFLICT, ["captions.txt", "results.csv"]),
        headless: (ErrorCode.UNREADABLE, ["captions.txt", "image.jpg,caption"]),
        pictureless: (ErrorCode.NOT_FOUND, ["captions.txt", "Images/"]),
    }
    for folder, (code, values) in cases.items():
        with pytest.raises(UsageError) as error:
            read(folder, cache)
        assert (error.value.code, str(error.value).isprintable()) == (code, True)
        assert all(value in str(error.value) for value in [str(folder), *values])


def test_cache_that_cannot_be_written_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file, no folder")
    with pytest.raises(UsageError) as error:
        read(folder, tmp_path / "file")
    assert error.value.code is ErrorCode.UNWRITABLE
    assert str(tmp_path / "file") in str(error.value)
