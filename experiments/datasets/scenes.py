"""Pictures with captions that need no download: a handwritten digit in colour, drawn from a seed.

The digits are the 1,797 of scikit-learn's `load_digits` (UCI, 8x8); the captions come from a small
grammar. They are written in the form of Kaggle's Flickr8k and read by the same reader.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.files import new_folder
from experiments.datasets.labelled.digits import load_digits
from tracking.errors import ErrorCode, UsageError

# Raise it when the same seed would give other pictures or captions.
VERSION = 2

_SMALLEST_SIDE = 32

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Few colours and places, and large digits: a decoder learns them in the seconds of a demo.
_COLOURS = {
    "red": (225, 45, 40),
    "yellow": (245, 220, 60),
    "green": (50, 175, 75),
    "blue": (60, 110, 235),
    "white": (250, 250, 250),
}
_GROUNDS = {"black": (8, 8, 10), "grey": (95, 95, 100), "brown": (110, 60, 20)}
# Side of a digit as a share of its place's.
_SIZES = {"small": 0.6, "large": 1.0}
# Centre and side of each place, as shares of the picture's side.
_PLACES = {
    "in the middle": (0.5, 0.5, 0.8),
    "on the left": (0.32, 0.5, 0.6),
    "on the right": (0.68, 0.5, 0.6),
}


@dataclass(frozen=True)
class _Scene:
    digit: str
    colour: str
    size: str
    place: str
    ground: str


def write(folder: Path, *, images: int, seed: int, side: int = 64) -> None:
    """Write `captions.txt` and `Images/`; the same arguments give the same bytes.

    A folder that exists is complete and is not written again. Raises UsageError for what cannot be
    drawn or written.
    """
    if images < 2 or side < _SMALLEST_SIDE:
        raise UsageError(
            ErrorCode.TOO_FEW,
            f"{images} scenes of {side} x {side} pixels cannot be drawn; at least 2, of "
            f"{_SMALLEST_SIDE} x {_SMALLEST_SIDE}",
        )
    if folder.is_dir():
        return
    rng = np.random.default_rng(seed)
    ink, targets = load_digits()
    digits = {name: ink[targets == value] for value, name in enumerate(_DIGITS)}
    with new_folder(folder) as partial:
        (partial / "Images").mkdir()
        with (partial / "captions.txt").open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["image", "caption"])
            for number in range(images):
                choices = (_DIGITS, _COLOURS, _SIZES, _PLACES, _GROUNDS)
                scene = _Scene(*(str(rng.choice(list(names))) for names in choices))
                name = f"scene_{number:05d}.png"
                # Stored without compression: the bytes do not depend on Pillow's zlib.
                _draw(scene, side, digits, rng).save(partial / "Images" / name, compress_level=0)
                rows.writerows((name, caption) for caption in _captions(scene, rng))


def _draw(
    scene: _Scene, side: int, digits: dict[str, NDArray[np.uint8]], rng: np.random.Generator
) -> Any:
    from experiments.datasets.images import Image

    picture = Image.new("RGB", (side, side), _GROUNDS[scene.ground])
    across, down, share = _PLACES[scene.place]
    pixels = max(8, round(side * share * _SIZES[scene.size]))
    ink = digits[scene.digit][rng.integers(len(digits[scene.digit]))]
    mask = Image.fromarray(ink).resize((pixels, pixels), Image.Resampling.BICUBIC)
    jitter = rng.integers(-side // 32, side // 32 + 1, size=2)
    corner = (
        round(side * across - pixels / 2) + int(jitter[0]),
        round(side * down - pixels / 2) + int(jitter[1]),
    )
    picture.paste(_COLOURS[scene.colour], corner, mask)
    return picture


def _captions(scene: _Scene, rng: np.random.Generator) -> list[str]:
    coloured = f"{_article(scene.colour)} {scene.colour}"
    opening = str(rng.choice(["somebody wrote", "we can see", "here is"]))
    return [
        f"{coloured} digit {scene.place} on {scene.ground} .",
        f"there is {coloured} digit {scene.place} .",
        f"{opening} {_article(scene.size)} {scene.size} {scene.colour} {scene.digit} .",
        f"{coloured} {scene.digit} {scene.place} , drawn on {scene.ground} .",
        f"{coloured} digit on {scene.ground}",
    ]


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" and word != "one" else "a"
