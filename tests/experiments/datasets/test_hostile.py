"""Hostile caption files and pictures: names that lead out, bombs, other programs."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from experiments.datasets import images
from experiments.datasets.captions import CaptionData, index
from experiments.datasets.layouts import SkipReason
from tests.experiments.datasets.folders import kaggle, picture


def read(folder: Path, **options: Any) -> CaptionData:
    return index(str(folder), cache=folder.parent / "cache", seed=1, **options)


# ---- a good caption for each of four pictures, and a row of another author


def write_kaggle(folder: Path, name: str, text: str) -> None:
    rows = [f"{number}.jpg,brown dog" for number in range(4)]
    content = "\n".join(["image,caption", *rows, f"{name},{text}"])
    (folder / "captions.txt").write_text(content, encoding="utf-8")


def write_karpathy(folder: Path, name: str, text: str) -> None:
    top, _, last = name.rpartition("/")
    names = {**{f"{number}.jpg": "brown dog" for number in range(4)}, last: text}
    entries = [
        {"filename": name, "split": "train", "sentences": [{"raw": caption}]}
        for name, caption in names.items()
    ]
    if last != name:
        entries[-1]["filepath"] = top or "/"
    (folder / "dataset.json").write_text(json.dumps({"images": entries}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
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
@pytest.mark.parametrize("write", [write_kaggle, write_karpathy])
def test_hostile_names_are_skipped_and_counted(
    folder: Path, write: Callable[[Path, str, str], None], name: str, reason: SkipReason
) -> None:
    write(folder, name.format(folder.parent), "a secret place")
    data = read(folder)
    assert (len(data.images), data.dropped) == (4, {reason: 1})
    assert "secret" not in data.vocabulary.ids


def test_captions_of_an_ambiguous_id_are_skipped(folder: Path) -> None:
    (folder / "images").rename(folder / "val2017")
    (folder / "annotations").mkdir()
    files = [{"id": number % 3, "file_name": f"{number}.jpg"} for number in range(4)]
    captions = [{"image_id": number, "caption": "brown dog"} for number in range(3)]
    path = folder / "annotations" / "captions_val2017.json"
    path.write_text(json.dumps({"images": [*files, files[-1]], "annotations": captions}))
    data = read(folder)
    assert data.dropped == {SkipReason.TWO_FILES: 1}
    assert list(data.images) == ["val2017/1.jpg", "val2017/2.jpg"]


def test_endless_caption_does_not_widen_all(folder: Path) -> None:
    write_kaggle(folder, "0.jpg", "very " * 20_000 + "long dog")
    data = read(folder)
    assert data.dropped == {SkipReason.TOO_LONG: 1}
    assert data.tokens.shape == (4, 4)


# ---- pictures


def test_pictures_without_pixels_and_bombs_are_left_out(tmp_path: Path) -> None:
    folder = kaggle(tmp_path / "data", images=10)
    size = struct.pack("<HH", 5, 0)
    gif = b"GIF89a" + size + b"\0\0\0," + b"\0\0\0\0" + size + b"\0\x02\x02\x44\x01\0;"
    (folder / "Images" / "1.jpg").write_bytes(gif)
    bomb = folder / "Images" / "2.jpg"
    Image.new("1", (10_000, 10_000)).save(bomb, format="PNG")
    assert bomb.stat().st_size < 100_000
    (first, _), (second, reason) = read(folder, max_broken=0.5).broken
    assert (first, second) == ("Images/1.jpg", "Images/2.jpg")
    assert f"{images.MAX_PIXELS:,}" in reason


def test_picture_starts_no_other_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer an EPS file, for which Pillow starts Ghostscript."""
    path = tmp_path / "picture.jpg"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path, format="EPS")
    started: list[object] = []
    monkeypatch.setattr(subprocess, "check_call", lambda *command, **_: started.append(command))
    assert images.problem(path, decode=True)
    assert isinstance(images.opened(path), str)
    assert started == []
