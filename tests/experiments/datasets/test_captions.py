from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.datasets.captions import CaptionData, index
from experiments.datasets.layouts import SPLITS
from tests.experiments.datasets.folders import kaggle, picture
from tracking.errors import UsageError


def _index(folder: Path, cache: Path, seed: int = 1, **options: object) -> CaptionData:
    return index(str(folder), cache=cache, seed=seed, **options)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return kaggle(tmp_path / "data")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_arrays(folder: Path, cache: Path) -> None:
    data = _index(folder, cache)
    assert data.length == 7  # the longest caption has five words, and two marks
    assert (
        data.vocabulary.size == len({"dog", "runs", "two", "brown", "dogs", "run", "fast"}) + 2 + 1
    )
    assert data.tokens.dtype == np.int32
    assert data.tokens.shape == (20, 7)
    assert data.tokens.max() < data.vocabulary.size
    np.testing.assert_array_equal(data.caption_image, np.repeat(np.arange(10), 2))
    assert data.references(3) == ["dog runs", "two brown dogs run fast"]
    assert data.images[3] == "Images/3.jpg"


def test_captions_of_an_image_lie_together_whatever_the_file_says(
    folder: Path, cache: Path
) -> None:
    rows = [
        f"{image}.jpg,caption number{turn} of{image}" for turn in range(2) for image in range(10)
    ]
    (folder / "captions.txt").write_text("image,caption\n" + "\n".join(rows))
    data = _index(folder, cache)
    assert [data.references(image) for image in (0, 9)] == [
        [f"caption number{turn} of{image}" for turn in range(2)] for image in (0, 9)
    ]


def test_split_is_85_to_15_by_seed(tmp_path: Path, cache: Path) -> None:
    folder = kaggle(tmp_path / "data", images=40)
    first, again, other = (
        _index(folder, cache),
        _index(folder, cache / "elsewhere"),
        _index(folder, cache, seed=2),
    )
    assert len(first.images_of("train")) == 34
    assert len(first.images_of("validation")) == 6
    assert len(first.images_of("test")) == 0
    np.testing.assert_array_equal(first.split, again.split)
    assert not np.array_equal(first.split, other.split)
    assert set(first.captions_of("train")).isdisjoint(first.captions_of("validation"))
    assert len(first.captions_of("train")) == 68


def test_digest_is_of_the_bytes(folder: Path, tmp_path: Path, cache: Path) -> None:
    same = kaggle(tmp_path / "copy")
    digest = _index(folder, cache).digest
    assert _index(same, cache).digest == digest
    assert _index(folder, cache, seed=2).digest != digest
    (same / "captions.txt").write_text((same / "captions.txt").read_text().replace("fast", "slow"))
    assert _index(same, cache).digest != digest
    picture(folder / "Images" / "3.jpg", seed=99, size=(40, 40))
    assert _index(folder, cache).digest != digest


def test_moved_data_is_read_where_it_is_now(folder: Path, tmp_path: Path, cache: Path) -> None:
    first = _index(folder, cache)
    folder.rename(tmp_path / "moved")
    second = _index(tmp_path / "moved", cache)
    assert second.digest == first.digest
    assert CaptionData.open(second.folder).source == str(tmp_path / "moved")


class TestBrokenImages:
    def _damage(self, folder: Path) -> None:
        images = folder / "Images"
        (images / "1.jpg").unlink()
        (images / "2.jpg").write_bytes(b"")
        (images / "3.jpg").write_text("this is no picture")
        whole = (images / "4.jpg").read_bytes()
        (images / "4.jpg").write_bytes(whole[: len(whole) // 2])

    def test_left_out_with_reason(self, folder: Path, cache: Path) -> None:
        self._damage(folder)
        data = _index(folder, cache, max_broken=0.5)
        reasons = dict(data.broken)
        assert list(reasons) == [f"Images/{number}.jpg" for number in (1, 2, 3, 4)]
        assert reasons["Images/1.jpg"] == "missing"
        assert reasons["Images/2.jpg"] == "empty file"
        assert reasons["Images/3.jpg"] == "not an image"
        assert "truncated" in reasons["Images/4.jpg"]
        assert len(data.images) == 6
        assert len(data.tokens) == 12
        assert data.caption_image.max() == 5

    def test_too_many_name_the_first(self, folder: Path, cache: Path) -> None:
        self._damage(folder)
        with pytest.raises(
            UsageError,
            match=r"4 of 10 images .* Images/1\.jpg: missing; .*max_broken_images \(now 0\.01\)",
        ):
            _index(folder, cache)


class TestUsageErrors:
    """Each is one line that says what, where and what would be right."""

    def _message(self, folder: Path, cache: Path) -> str:
        with pytest.raises(UsageError) as caught:
            _index(folder, cache)
        message = str(caught.value)
        assert "\n" not in message
        return message

    def test_unknown_folder(self, tmp_path: Path, cache: Path) -> None:
        (tmp_path / "empty").mkdir()
        message = self._message(tmp_path / "empty", cache)
        assert message.startswith(
            f"{tmp_path / 'empty'} holds no known caption data set; looked for "
        )
        for name in (
            "captions.txt",
            "results.csv",
            "captions_train2017.json",
            "dataset_*.json",
            "*.tsv",
        ):
            assert name in message

    def test_two_data_sets(self, folder: Path, cache: Path) -> None:
        (folder / "results.csv").write_text("image_name| comment_number| comment\n")
        assert "captions.txt" in self._message(folder, cache)
        assert "results.csv" in self._message(folder, cache)

    def test_no_readable_row(self, folder: Path, cache: Path) -> None:
        (folder / "captions.txt").write_text("image,caption\nnothing\n")
        assert "captions.txt has no readable row; a row is image.jpg,caption" in self._message(
            folder, cache
        )

    def test_images_folder_missing(self, folder: Path, cache: Path) -> None:
        (folder / "Images").rename(folder / "Pictures")
        assert "has no folder of images next to it; looked for Images/" in self._message(
            folder, cache
        )

    def test_unwritable_cache(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("a file, no folder")
        assert f"cannot write the cache {tmp_path / 'file'}" in self._message(
            folder, tmp_path / "file"
        )


def test_the_data_sets_own_split_can_be_set_aside(tmp_path: Path, cache: Path) -> None:
    entries = []
    for number in range(20):
        picture(tmp_path / "set" / "Images" / f"{number}.jpg", number)
        named = "test" if number < 5 else "val" if number < 10 else "train"
        entries.append(
            {"filename": f"{number}.jpg", "split": named, "sentences": [{"raw": "brown dog"}]}
        )
    (tmp_path / "set" / "dataset.json").write_text(json.dumps({"images": entries}))
    own = _index(tmp_path / "set", cache)
    assert [len(own.images_of(split)) for split in SPLITS] == [10, 5, 5]
    drawn = _index(tmp_path / "set", cache, own_split=False)
    assert [len(drawn.images_of(split)) for split in SPLITS] == [17, 3, 0]
    assert drawn.digest != own.digest
