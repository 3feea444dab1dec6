"""Conversion of pictures to arrays: one Pillow and NumPy pipeline for every framework.

RGB after the EXIF orientation (transparent pixels on white, 16-bit scaled down, CMYK and palettes
converted); resized to size x size with a bicubic filter without preserving the aspect ratio, as in
the captioning study; then / 255, minus ImageNet's mean, divided by its standard deviation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageDraw, ImageOps, UnidentifiedImageError

from tracking import plain

MEAN: NDArray[np.float32] = np.array([0.485, 0.456, 0.406], np.float32)
STANDARD_DEVIATION: NDArray[np.float32] = np.array([0.229, 0.224, 0.225], np.float32)

__all__ = [
    "Image",
    "ImageBatch",
    "ImageDraw",
    "batches",
    "normalise",
    "open_picture",
    "orientation_of_plain",
]

Image.init()
# Formats of data sets of photographs. For others, such as EPS, Pillow starts another program.
FORMATS = tuple(
    name
    for name in ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
    if name in Image.OPEN
)
# Pillow warns of a decompression bomb from here on; a file of kilobytes may claim far more.
MAX_PIXELS = 89_478_485
# A progressive JPEG decodes all pixels once a scan; usual ones have about ten.
MAX_SCANNED_PIXELS = 10 * MAX_PIXELS
START_OF_SCAN = b"\xff\xda"
# Warnings of bombs and of damaged notes of a camera: only readable pixels matter.
warnings.filterwarnings("ignore", module=r"PIL\.")

UPRIGHT = range(1, 9)
_T = TypeVar("_T")


class ImageBatch(NamedTuple):
    """Images `first`, `first` + 1, … of the data set.

    pixels: float32 (n, size, size, 3), normalised; zeros for a broken image.
    broken: (image, reason).
    """

    first: int
    pixels: NDArray[np.float32]
    broken: list[tuple[int, str]]


def batches(
    folder: Path, images: Sequence[str], *, size: int, batch: int, start: int = 0
) -> Iterator[ImageBatch]:
    """Yield images below `folder` from `start` on, `batch` at a time (the last may be smaller)."""
    for first in range(start, len(images), batch):
        paths = [folder / path for path in images[first : first + batch]]
        pixels = np.zeros((len(paths), size, size, 3), np.float32)
        broken = []
        for row, path in enumerate(paths):
            result = _read(path, lambda picture: normalise(picture, size))
            if isinstance(result, str):
                broken.append((first + row, result))
            else:
                pixels[row] = result
        yield ImageBatch(first, pixels, broken)


def normalise(picture: Image.Image, size: int) -> NDArray[np.float32]:
    """Return float32 (size, size, 3) of a picture of any mode."""
    resized = _rgb(picture).resize((size, size), Image.Resampling.BICUBIC)
    pixels: NDArray[np.float32] = np.asarray(resized, np.float32) / np.float32(255)
    return (pixels - MEAN) / STANDARD_DEVIATION


def problem(path: Path, *, decode: bool) -> str | None:
    """Return why an image file cannot be used, or None; reads the header only unless `decode`."""
    result = _read(path, lambda picture: picture.load() if decode else None)
    return result if isinstance(result, str) else None


def orientation_of_plain(path: Path) -> int:
    """Return EXIF's orientation, 1…8, of a picture that every framework decodes alike; else 0.

    These are JPEG, and PNG of 8 bits, in RGB or grey, without transparency. It reads the header.
    """
    orientation = _read(path, _orientation_of_plain)
    return 0 if isinstance(orientation, str) else orientation


def _orientation_of_plain(picture: Image.Image) -> int:
    if (
        picture.format not in ("JPEG", "MPO", "PNG")
        or picture.mode not in ("L", "RGB")
        or picture.has_transparency_data
    ):
        return 0
    stored: Any = picture
    if picture.format == "PNG" and stored.tile[0].args != picture.mode:  # as `RGB;16B` or `L;4`
        return 0
    orientation = picture.getexif().get(ExifTags.Base.Orientation, 1)
    return orientation if orientation in UPRIGHT else 1


def open_picture(path: Path) -> Image.Image | str:
    """Return a picture upright and in RGB, or why it cannot be read."""
    return _read(path, _rgb)


def _read(path: Path, use: Callable[[Image.Image], _T]) -> _T | str:
    """Return the result of `use` on a picture, or why it cannot be read."""
    # Pillow's readers raise almost anything on a damaged file.
    try:
        if not path.is_file():  # a pipe or a device would block the reader
            return "missing, or not a file"
        with Image.open(path, formats=FORMATS) as picture:
            _check_pixels(path, picture)
            return use(picture)
    except UnidentifiedImageError:
        return "not an image"
    except Exception as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        return f"cannot be decoded: {plain.short(first_line)}"


def _check_pixels(path: Path, picture: Image.Image) -> None:
    """Check a picture before it is decoded: a file of kilobytes can promise gigabytes."""
    if picture.width * picture.height > MAX_PIXELS:
        raise ValueError(
            f"{picture.width:,} × {picture.height:,} pixels; at most {MAX_PIXELS:,} are read"
        )
    if picture.info.get("progressive"):
        scans = path.read_bytes().count(START_OF_SCAN)
        if scans * picture.width * picture.height > MAX_SCANNED_PIXELS:
            raise ValueError(
                f"{picture.width:,} × {picture.height:,} pixels in {scans:,} scans; at most "
                f"{MAX_SCANNED_PIXELS:,} are decoded"
            )


def _rgb(picture: Image.Image) -> Image.Image:
    upright = ImageOps.exif_transpose(picture)
    if upright.mode.startswith("I"):
        grey = np.clip(np.asarray(upright), 0, 65_535).astype(np.uint32)
        # Rounded: 65,535 is 257 times 255.
        return Image.fromarray(((grey + 128) // 257).astype(np.uint8)).convert("RGB")
    if upright.has_transparency_data:
        layered = upright.convert("RGBA")
        white = Image.new("RGBA", layered.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layered).convert("RGB")
    return upright.convert("RGB")
