from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.datasets import images
from experiments.datasets.captions import CaptionData, index
from experiments.datasets.layouts import SPLITS, SkipReason
from tests.experiments.datasets.folders import kaggle, picture, refused, write_karpathy
from tracking.errors import ErrorCode


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
    assert read(folder, cache).references(9) == ["caption number0 of9", "caption number1 of9"]


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
    write_karpathy(tmp_path / "set")
    named, drawn = (read(tmp_path / "set", cache, own_split=is_named) for is_named in (True, False))
    assert [len(named.images_of(split)) for split in SPLITS] == [2, 1, 1]
    assert [len(drawn.images_of(split)) for split in SPLITS] == [3, 1, 0]
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
    (folder / "Images" / "1.jpg").unlink()
    (folder / "Images" / "2.jpg").write_bytes(b"")
    (folder / "Images" / "3.jpg").write_text("this is no picture")
    content = (folder / "Images" / "4.jpg").read_bytes()
    (folder / "Images" / "4.jpg").write_bytes(content[: len(content) // 2])
    data = read(folder, cache, max_broken=0.5)
    assert [path for path, _ in data.broken] == [f"Images/{number}.jpg" for number in (1, 2, 3, 4)]
    assert all(reason for _, reason in data.broken)
    assert (len(data.images), len(data.tokens), data.caption_image.max()) == (6, 12, 5)
    with refused(ErrorCode.UNREADABLE, "4 of 10", "Images/1.jpg", "max_broken_images", "0.01"):
        read(folder, cache)


def test_folders_without_usable_captions_are_refused(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "empty").mkdir()
    two, headless, pictureless = (kaggle(tmp_path / name) for name in ("two", "none", "gone"))
    (two / "results.csv").write_text("image_name| comment_number| comment\n")
    (headless / "captions.txt").write_text("image,caption\nnothing\n")
    (pictureless / "Images").rename(pictureless / "Pictures")
    formats = ["captions_train2017.json", "dataset_*.json"]
    cases = {
        tmp_path / "empty": (ErrorCode.NOT_FOUND, formats),
        tmp_path / "nowhere": (ErrorCode.NOT_FOUND, []),
        two: (ErrorCode.CONFLICT, ["captions.txt", "results.csv"]),
        headless: (ErrorCode.UNREADABLE, ["captions.txt", "image.jpg,caption"]),
        pictureless: (ErrorCode.NOT_FOUND, ["captions.txt", "Images/"]),
    }
    for folder, (code, values) in cases.items():
        with refused(code, str(folder), *values):
            read(folder, cache)


def test_cache_that_cannot_be_written_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file, no folder")
    with refused(ErrorCode.UNWRITABLE, str(tmp_path / "file")):
        read(folder, tmp_path / "file")


# ---- hostile files: a good caption for each of four pictures, and a row of another author


def write_rows(folder: Path, name: str, text: str) -> None:
    rows = [f"{number}.jpg,brown dog" for number in range(4)]
    content = "\n".join(["image,caption", *rows, f"{name},{text}"])
    (folder / "captions.txt").write_text(content, encoding="utf-8")


@pytest.fixture
def four(tmp_path: Path) -> Path:
    for number in range(4):
        picture(tmp_path / "data" / "images" / f"{number}.jpg", number)
    picture(tmp_path / "secret.jpg", 9)
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../../secret.jpg", SkipReason.LEADS_OUT),
        ("{}/secret.jpg", SkipReason.LEADS_OUT),
        ("4\x1b[2J.jpg", SkipReason.CONTROLS),
    ],
)
def test_hostile_names_are_skipped_and_counted(
    four: Path, cache: Path, name: str, reason: SkipReason
) -> None:
    """tests/fuzz/test_captions.py looks for names that lead out in the other formats."""
    write_rows(four, name.format(four.parent), "a secret place")
    data = read(four, cache)
    assert (len(data.images), data.dropped) == (4, {reason: 1})
    assert "secret" not in data.vocabulary.ids


def test_captions_of_an_ambiguous_id_are_skipped(four: Path, cache: Path) -> None:
    (four / "images").rename(four / "val2017")
    (four / "annotations").mkdir()
    files = [{"id": number % 3, "file_name": f"{number}.jpg"} for number in range(4)]
    captions = [{"image_id": number, "caption": "brown dog"} for number in range(3)]
    path = four / "annotations" / "captions_val2017.json"
    path.write_text(json.dumps({"images": [*files, files[-1]], "annotations": captions}))
    data = read(four, cache)
    assert data.dropped == {SkipReason.TWO_FILES: 1}
    assert list(data.images) == ["val2017/1.jpg", "val2017/2.jpg"]


def test_endless_caption_does_not_widen_all(four: Path, cache: Path) -> None:
    write_rows(four, "0.jpg", "very " * 20_000 + "long dog")
    data = read(four, cache)
    assert data.dropped == {SkipReason.TOO_LONG: 1}
    assert data.tokens.shape == (4, 4)


# ---- pictures


def test_scans_without_end_are_left_out(tmp_path: Path) -> None:
    """A small file whose last scan is repeated 300 times: all pixels are decoded once a scan."""
    path = tmp_path / "scans.jpg"
    Image.new("RGB", (2_000, 2_000)).save(path, progressive=True)
    content = path.read_bytes()
    assert images.problem(path, decode=True) is None
    last, end = content.rindex(images.START_OF_SCAN), content.rindex(b"\xff\xd9")
    path.write_bytes(content[:end] + content[last:end] * 300 + content[end:])
    reason = images.problem(path, decode=False)
    assert f"{images.MAX_SCANNED_PIXELS:,}" in (reason or "")


def test_pictures_without_pixels_and_bombs_are_left_out(folder: Path, cache: Path) -> None:
    size = struct.pack("<HH", 5, 0)
    gif = b"GIF89a" + size + b"\0\0\0," + b"\0\0\0\0" + size + b"\0\x02\x02\x44\x01\0;"
    (folder / "Images" / "1.jpg").write_bytes(gif)
    bomb = folder / "Images" / "2.jpg"
    Image.new("1", (10_000, 10_000)).save(bomb, format="PNG")
    assert bomb.stat().st_size < 100_000
    (first, _), (second, reason) = read(folder, cache, max_broken=0.5).broken
    assert (first, second) == ("Images/1.jpg", "Images/2.jpg")
    assert f"{images.MAX_PIXELS:,}" in reason


def test_picture_starts_no_other_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer an EPS file, for which Pillow starts Ghostscript."""
    path = tmp_path / "picture.jpg"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path, format="EPS")
    started: list[object] = []
    monkeypatch.setattr(subprocess, "check_call", lambda *command, **_: started.append(command))
    assert images.problem(path, decode=True)
    assert isinstance(images.open_picture(path), str)
    assert started == []
