from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.datasets import scenes
from experiments.datasets.captions import index
from tracking.errors import UsageError


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


def test_one_image_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 2"):
        scenes.write(tmp_path / "scenes", images=1, seed=0)
