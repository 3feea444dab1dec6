from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from experiments.datasets.captions import CaptionData, index
from experiments.datasets.images import MEAN, STANDARD_DEVIATION, batches, normalise
from tests.experiments.datasets.folders import kaggle

# A colour that came through unharmed: one step of 8 bits, in normalised units.
_ONE_STEP = 1.01 / 255 / float(STANDARD_DEVIATION.min())


@pytest.fixture
def data(tmp_path: Path) -> CaptionData:
    return index(str(kaggle(tmp_path / "data", images=7)), cache=tmp_path / "cache", seed=1)


def _colour(*rgb: int) -> NDArray[np.float32]:
    level: NDArray[np.float32] = np.array(rgb, np.float32) / np.float32(255)
    return (level - MEAN) / STANDARD_DEVIATION


def test_batches_cover_the_images_in_order(data: CaptionData) -> None:
    parts = list(batches(Path(data.source), data.images, size=24, batch=3))
    assert [(batch.first, len(batch.pixels)) for batch in parts] == [(0, 3), (3, 3), (6, 1)]
    assert all(batch.pixels.dtype == np.float32 and batch.broken == [] for batch in parts)
    with Image.open(Path(data.source, data.images[4])) as picture:
        np.testing.assert_array_equal(parts[1].pixels[1], normalise(picture, 24))


def _grey(mode: str, level: int) -> Image.Image:
    picture = Image.new("RGB", (40, 30), (level, level, level))
    if mode == "I;16":
        return Image.fromarray(np.full((30, 40), level * 257, np.uint16))
    if mode == "P":
        return picture.quantize(4)
    return picture.convert("L").convert("LA") if mode == "LA" else picture.convert(mode)


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [
        *((mode, ".png") for mode in ("RGB", "RGBA", "P", "L", "LA", "I;16", "1")),
        *((mode, ".tiff") for mode in ("CMYK", "I;16")),
        *((mode, ".jpg") for mode in ("RGB", "CMYK", "L")),
    ],
)
def test_every_mode_is_converted_to_rgb(tmp_path: Path, mode: str, suffix: str) -> None:
    """Save a grey, or white where there are two colours only."""
    level = 255 if mode == "1" else 128
    _grey(mode, level).save(tmp_path / f"picture{suffix}")
    with Image.open(tmp_path / f"picture{suffix}") as opened:
        pixels = normalise(opened, 16)
    expected = np.broadcast_to(_colour(level, level, level), (16, 16, 3))
    np.testing.assert_allclose(pixels, expected, atol=_ONE_STEP)


def test_transparent_pixels_are_white() -> None:
    pixels = normalise(Image.new("RGBA", (8, 8), (255, 0, 0, 0)), 8)
    white = np.broadcast_to(_colour(255, 255, 255), (8, 8, 3))
    np.testing.assert_allclose(pixels, white, atol=1e-6)


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    """Save a picture with a black left half, turned by a camera held upright."""
    picture = Image.new("RGB", (32, 32), (255, 255, 255))
    picture.paste((0, 0, 0), (0, 0, 16, 32))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    with Image.open(tmp_path / "turned.jpg") as opened:
        pixels = normalise(opened, 32)
    assert pixels[:12].max() < _colour(40, 40, 40).max()
    assert pixels[20:].min() > _colour(215, 215, 215).min()
