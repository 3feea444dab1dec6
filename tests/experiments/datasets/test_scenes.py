from __future__ import annotations

import hashlib
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.datasets import scenes
from experiments.datasets.captions import index
from tracking.errors import WrongCall


def _bytes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        scenes.write(tmp_path / name, images=20, seed=seed)
    assert _bytes(tmp_path / "a") == _bytes(tmp_path / "b")
    assert _bytes(tmp_path / "a") != _bytes(tmp_path / "c")


def test_pictures_have_the_side_and_show_something(tmp_path: Path) -> None:
    scenes.write(tmp_path / "scenes", images=5, seed=0, side=48)
    for path in (tmp_path / "scenes" / "Images").iterdir():
        pixels = np.asarray(Image.open(path))
        assert pixels.shape == (48, 48, 3)
        assert pixels.std() > 1


def test_captions_tell_what_was_drawn(tmp_path: Path) -> None:
    """The pixels of a picture with a red digit are reddest where the caption says the digit is."""
    data = index("scenes", cache=tmp_path, seed=3, images=200)
    found = 0
    for image, path in enumerate(data.images):
        fullest = data.references(image)[0].split()
        if "red" in fullest and ("left" in fullest or "right" in fullest):
            pixels = np.asarray(Image.open(Path(data.source, path)), np.float64)
            redness = (pixels[..., 0] - pixels[..., 2]).clip(0)
            redness -= np.median(redness)
            left = redness[:, :32].sum() > redness[:, 32:].sum()
            assert left == ("left" in fullest)
            found += 1
    assert found >= 10


def test_default_is_quick_and_rich(tmp_path: Path) -> None:
    begun = time.perf_counter()
    data = index("scenes", cache=tmp_path, seed=0)
    assert time.perf_counter() - begun < 20  # seconds; about 1.2 on an idle core
    assert len(data.images) == 400
    assert len(data.tokens) == 400 * scenes.CAPTIONS_PER_IMAGE
    assert len(data.images_of("train")) == 340
    assert data.name == "scenes"
    assert data.broken == ()
    assert data.vocabulary.size > 35  # ten digits, five colours, three grounds, and what joins them
    assert {len(data.references(image)) for image in range(10)} == {5}
    distinct = {tuple(row) for row in data.tokens.tolist()}
    assert len(distinct) > 0.25 * len(
        data.tokens
    )  # few enough that a demo's training meets each of them


def test_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    scenes.write(tmp_path / "scenes", images=3, seed=0)
    before = _bytes(tmp_path / "scenes")
    scenes.write(tmp_path / "scenes", images=4, seed=1)
    assert _bytes(tmp_path / "scenes") == before


def test_one_image_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="at least 2"):
        scenes.write(tmp_path / "scenes", images=1, seed=0)


def test_digits_need_room(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="at least 32"):
        scenes.write(tmp_path / "scenes", images=5, seed=0, side=16)


def test_nothing_is_left_of_an_interrupted_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = 0
    draw = scenes._draw

    def interrupted(*arguments: object) -> object:
        nonlocal drawn
        drawn += 1
        if drawn > 3:
            raise KeyboardInterrupt
        return draw(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(scenes, "_draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scenes.write(tmp_path / "scenes", images=10, seed=0)
    assert list(tmp_path.iterdir()) == []
