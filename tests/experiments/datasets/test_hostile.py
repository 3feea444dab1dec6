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
from experiments.datasets.layouts import CONTROLS, LEADS_OUT
from tests.experiments.datasets.folders import kaggle, picture

Write = Callable[[Path, str, str], None]


def _index(folder: Path, **options: Any) -> CaptionData:
    return index(str(folder), cache=folder.parent / "cache", seed=1, **options)


# ---- a good caption for each of four pictures, and a row of another author


def _kaggle(folder: Path, name: str, text: str) -> None:
    rows = [f"{number}.jpg,brown dog" for number in range(4)]
    (folder / "captions.txt").write_text(
        "\n".join(["image,caption", *rows, f"{name},{text}"]), encoding="utf-8"
    )


def _karpathy(folder: Path, name: str, text: str, **own: str) -> None:
    entries: list[dict[str, Any]] = [
        {"filename": f"{number}.jpg", "split": "train", "sentences": [{"raw": "brown dog"}]}
        for number in range(4)
    ]
    entries.append({"filename": name, "split": "train", "sentences": [{"raw": text}], **own})
    (folder / "dataset.json").write_text(json.dumps({"images": entries}))


def _karpathys_path(folder: Path, name: str, text: str) -> None:
    top, _, last = name.rpartition("/")
    _karpathy(folder, last, text, filepath=top or "/")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(4):
        picture(tmp_path / "data" / "images" / f"{number}.jpg", number)
    picture(tmp_path / "secret.jpg", 9)
    return tmp_path / "data"


@pytest.mark.parametrize("name", ["../../secret.jpg", "{}/secret.jpg"])
@pytest.mark.parametrize("write", [_kaggle, _karpathys_path])
def test_names_that_lead_out_of_the_folder_are_skipped_and_counted(
    folder: Path, write: Write, name: str
) -> None:
    write(folder, name.format(folder.parent), "a secret place")
    data = _index(folder)
    assert len(data.images) == 4
    assert data.dropped == {LEADS_OUT.reason: 1}
    assert "secret" not in data.vocabulary.ids


@pytest.mark.parametrize("name", ["4\x1b[2J.jpg"])
@pytest.mark.parametrize("write", [_kaggle, _karpathy])
def test_control_characters_in_names_are_skipped_and_counted(
    folder: Path, write: Write, name: str
) -> None:
    write(folder, name, "hidden dog")
    assert _index(folder).dropped == {CONTROLS.reason: 1}


def test_an_id_of_two_pictures_is_nobodys(folder: Path) -> None:
    """The last of them was taken for the caption's before."""
    (folder / "images").rename(folder / "val2017")
    (folder / "annotations").mkdir()
    files = [{"id": number, "file_name": f"{number}.jpg"} for number in range(3)] + [
        {"id": 0, "file_name": "3.jpg"}
    ] * 2
    told = [{"image_id": number, "caption": "brown dog"} for number in range(3)]
    path = folder / "annotations" / "captions_val2017.json"
    path.write_text(json.dumps({"images": files, "annotations": told}))
    data = _index(folder)
    assert data.dropped == {"id of more than one image file": 1}
    assert list(data.images) == ["val2017/1.jpg", "val2017/2.jpg"]


def test_one_endless_caption_does_not_widen_all(folder: Path) -> None:
    _kaggle(folder, "0.jpg", "very " * 20_000 + "long dog")
    data = _index(folder)
    assert data.dropped == {"caption of more than 1,000 words": 1}
    assert data.tokens.shape == (4, 4)


# ---- pictures


def _gif(width: int, height: int) -> bytes:
    size = struct.pack("<HH", width, height)
    return b"GIF89a" + size + b"\0\0\0," + b"\0\0\0\0" + size + b"\0\x02\x02\x44\x01\0;"


def test_pictures_without_pixels_and_bombs_are_left_out_with_the_reason(tmp_path: Path) -> None:
    folder = kaggle(tmp_path / "data", images=10)
    (folder / "Images" / "1.jpg").write_bytes(_gif(5, 0))
    bomb = folder / "Images" / "2.jpg"
    Image.new("1", (10_000, 10_000)).save(bomb, format="PNG")
    assert bomb.stat().st_size < 100_000
    data = _index(folder, max_broken=0.5)
    reasons = {Path(path).name: reason for path, reason in data.broken}
    assert reasons == {
        "1.jpg": "not an image",
        "2.jpg": "cannot be decoded: 10,000 × 10,000 pixels; at most 89,478,485 are read",
    }


def test_a_picture_starts_no_other_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow has Ghostscript run what an EPS file says."""
    path = tmp_path / "picture.jpg"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path, format="EPS")
    started: list[object] = []
    monkeypatch.setattr(subprocess, "check_call", lambda *given, **_: started.append(given))
    assert images.problem(path, decode=True) == "not an image"
    assert images.opened(path) == "not an image"
    assert started == []
