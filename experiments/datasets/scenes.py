"""Pictures with captions that need no download: handwritten digits in colour, drawn from a seed.

The digits are the 1,797 of scikit-learn's `load_digits` (UCI, 8x8); the captions come from a small grammar. Written in the form
of Kaggle's Flickr8k and read by the same reader.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.files import new_folder
from experiments.datasets.handwritten import handwritten
from tracking.errors import WrongCall

CAPTIONS_PER_IMAGE = 5
# Raise it when the same seed would give other pictures or captions: older ones in a cache are then left alone.
VERSION = 1

_SMALLEST_SIDE = 32

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_COLOURS = {
    "red": (225, 45, 40),
    "orange": (245, 145, 30),
    "yellow": (245, 220, 60),
    "green": (50, 175, 75),
    "blue": (60, 110, 235),
    "purple": (150, 70, 200),
    "pink": (245, 140, 190),
    "white": (250, 250, 250),
}
_GROUNDS = {"black": (8, 8, 10), "grey": (62, 62, 66), "brown": (82, 48, 22), "navy": (14, 20, 66)}
# Side of a digit as a share of its place's.
_SIZES = {"small": 0.55, "medium": 0.75, "large": 1.0}
# Centre and side of each place, as shares of the picture's side.
_PLACES = {
    "in the middle": (0.5, 0.5, 0.8),
    "on the left": (0.25, 0.5, 0.48),
    "on the right": (0.75, 0.5, 0.48),
    "above": (0.5, 0.25, 0.48),
    "below": (0.5, 0.75, 0.48),
    "at top left": (0.2, 0.2, 0.38),
    "at top right": (0.8, 0.2, 0.38),
    "at bottom left": (0.2, 0.8, 0.38),
    "at bottom right": (0.8, 0.8, 0.38),
}
_GROUPS = (
    *((place,) for place in _PLACES),
    ("on the left", "on the right"),
    ("above", "below"),
    ("at top left", "at bottom right"),
    ("at top right", "at bottom left"),
    ("on the left", "at top right", "at bottom right"),
    ("above", "at bottom left", "at bottom right"),
)


@dataclass(frozen=True)
class _Thing:
    digit: str
    colour: str
    size: str
    place: str


def write(folder: Path, *, images: int, seed: int, side: int = 64) -> None:
    """`captions.txt` and `Images/` with `images` pictures of side x side pixels; the same bytes for the same arguments.

    A folder that is there already is left alone: it appears whole or not at all. Raises WrongCall for what
    cannot be drawn or written.
    """
    if images < 2:
        raise WrongCall(f"scenes with {images} images cannot be split into training and validation; at least 2")
    if side < _SMALLEST_SIDE:
        raise WrongCall(f"scenes of {side} x {side} pixels are too small for their digits; at least {_SMALLEST_SIDE}")
    if folder.is_dir():
        return
    rng = np.random.default_rng(seed)
    digits = _handwritten()
    with new_folder(folder) as partial:
        (partial / "Images").mkdir()
        with (partial / "captions.txt").open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["image", "caption"])
            for number in range(images):
                things, ground = _scene(rng)
                name = f"scene_{number:05d}.png"
                # Stored without compression: the same bytes whatever zlib Pillow was built with.
                _draw(things, ground, side, digits, rng).save(partial / "Images" / name, compress_level=0)
                rows.writerows((name, caption) for caption in _captions(things, ground, rng))


def _handwritten() -> dict[str, NDArray[np.uint8]]:
    """The 8x8 pictures of each digit, ink 255 on 0."""
    ink, targets = handwritten()
    return {name: ink[targets == value] for value, name in enumerate(_DIGITS)}


def _scene(rng: np.random.Generator) -> tuple[list[_Thing], str]:
    places = _GROUPS[rng.integers(len(_GROUPS))]
    colours = rng.permutation(list(_COLOURS))[: len(places)]
    sizes = rng.choice(list(_SIZES), len(places))
    digits = rng.choice(_DIGITS, len(places))
    drawn = zip(digits, colours, sizes, places, strict=True)
    things = [_Thing(str(digit), str(colour), str(size), place) for digit, colour, size, place in drawn]
    return things, str(rng.choice(list(_GROUNDS)))


def _draw(things: list[_Thing], ground: str, side: int, digits: dict[str, NDArray[np.uint8]], rng: np.random.Generator) -> Any:
    from experiments.datasets.images import Image

    picture = Image.new("RGB", (side, side), _GROUNDS[ground])
    for thing in things:
        across, down, share = _PLACES[thing.place]
        pixels = max(8, round(side * share * _SIZES[thing.size]))
        ink = digits[thing.digit][rng.integers(len(digits[thing.digit]))]
        mask = Image.fromarray(ink).resize((pixels, pixels), Image.Resampling.BICUBIC)
        jitter = rng.integers(-side // 32, side // 32 + 1, size=2)
        corner = (round(side * across - pixels / 2) + int(jitter[0]), round(side * down - pixels / 2) + int(jitter[1]))
        picture.paste(_COLOURS[thing.colour], corner, mask)
    return picture


def _captions(things: list[_Thing], ground: str, rng: np.random.Generator) -> list[str]:
    """Five captions that tell different things of the same picture."""
    sized = _joined([f"{_article(thing.size)} {thing.size} {thing.colour} {thing.digit}" for thing in things])
    coloured = _joined([f"{_article(thing.colour)} {thing.colour} {thing.digit} {thing.place}" for thing in things])
    plain = _joined([f"{_article(thing.digit)} {thing.digit} {thing.place}" for thing in things])
    named = _joined([f"{_article(thing.colour)} {thing.colour} {thing.digit}" for thing in things])
    verb = "is" if len(things) == 1 else "are"
    opening = str(rng.choice(["somebody wrote", "we can see", "here is"]))
    return [
        f"{coloured} on {ground} .",
        f"there {verb} {coloured} .",
        f"{opening} {sized} .",
        f"{plain} , drawn on {ground} .",
        f"{named} on {ground}",
    ]


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" and word != "one" else "a"
