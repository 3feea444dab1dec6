from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.datasets import scenes
from experiments.datasets.captions import index
from tests.experiments.datasets.folders import refused
from tracking.errors import ErrorCode


def test_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    digests = []
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        scenes.write(tmp_path / name, images=20, seed=seed)
        paths = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        digests.append([(path.name, hashlib.sha256(path.read_bytes()).digest()) for path in paths])
    assert digests[0] == digests[1] != digests[2]


def test_captions_describe_the_pictures(tmp_path: Path) -> None:
    """Look for red digits where their captions say that they are."""
    data = index("scenes", cache=tmp_path, seed=3, images=200)
    compared = 0
    for image, path in enumerate(data.images):
        words = data.references(image)[0].split()
        if "red" in words and ("left" in words or "right" in words):
            pixels = np.asarray(Image.open(Path(data.source, path)), np.float64)
            redness = (pixels[..., 0] - pixels[..., 2]).clip(0)
            redness -= np.median(redness)
            is_left = redness[:, :32].sum() > redness[:, 32:].sum()
            assert is_left == ("left" in words)
            compared += 1
    assert compared >= 10


@pytest.mark.parametrize("sizes", [{"images": 1}, {"images": 2, "side": 16}])
def test_scenes_that_cannot_be_drawn_are_refused(tmp_path: Path, sizes: dict[str, int]) -> None:
    with refused(ErrorCode.TOO_FEW):
        scenes.write(tmp_path / "scenes", seed=0, **sizes)
