"""Captions and features of requested sizes, drawn from a seed: for timing at papers' sizes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.config import memory
from experiments.datasets.captions import TRAINING_SHARE, CaptionData
from experiments.datasets.files import new_folder, save_arrays
from experiments.datasets.tokens import END, START, Vocabulary
from tracking.errors import ErrorCode, UsageError

FEATURE_SIZE = 1_920
MAX_IMAGES = 2_048

_VERSION = 1
# Like Flickr8k's: about 12 words with both marks.
_MEAN_WORDS = 12.0
_WORDS_DEVIATION = 3.5
_SHORTEST = 4
# An id and whether it is padding; the numbers that a caption's length is drawn with.
_BYTES_A_WORD, _BYTES_A_CAPTION = 5, 32


def synthetic(
    *, vocabulary: int, length: int, captions: int, images: int, seed: int, cache: Path
) -> CaptionData:
    """Return random captions, the longest with exactly `length` words; there are no pictures.

    `features.npy` in its folder has float32 (images, 1920), non-negative as after a ReLU.

    Args:
        vocabulary: Number of ids, padding and marks among them.

    Raises:
        UsageError: No data of these sizes can be made.
    """
    are_words = vocabulary >= 4 and length >= _SHORTEST
    if not are_words or not 2 <= images <= MAX_IMAGES or captions < images:
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            f"synthetic data of {vocabulary} ids, length {length}, {images} images and "
            f"{captions} captions cannot be made; at least 4 ids, length {_SHORTEST}, 2 to "
            f"{MAX_IMAGES} images and a caption for each",
        )
    memory.require(
        captions * (length * _BYTES_A_WORD + _BYTES_A_CAPTION),
        f"{captions:,} synthetic captions of {length} words",
    )
    sizes = {
        "vocabulary": vocabulary,
        "length": length,
        "captions": captions,
        "images": images,
        "seed": seed,
    }
    digest = hashlib.sha256(json.dumps(["synthetic", _VERSION, sizes]).encode()).hexdigest()[:32]
    target = cache.absolute() / "caption_arrays" / digest
    if not target.is_dir():
        with new_folder(target) as partial:
            rng = np.random.default_rng(seed)
            _write(partial, digest, rng, vocabulary, length, captions, images)
    return CaptionData.open(target)


def _write(
    folder: Path,
    digest: str,
    rng: np.random.Generator,
    vocabulary: int,
    length: int,
    captions: int,
    images: int,
) -> None:
    marks = {START: 2, END: 2}
    entries = Vocabulary.from_counts(
        {**{f"w{number}": 1 for number in range(1, vocabulary - len(marks))}, **marks}
    )
    normal = np.round(rng.normal(_MEAN_WORDS, _WORDS_DEVIATION, captions))
    lengths = np.clip(normal, _SHORTEST, length).astype(np.int32)
    lengths[rng.integers(captions)] = length
    tokens = rng.integers(len(marks) + 1, vocabulary, (captions, length), dtype=np.int32)
    tokens[np.arange(length) >= lengths[:, None]] = 0
    tokens[:, 0] = entries.start
    tokens[np.arange(captions), lengths - 1] = entries.end
    split = np.zeros(images, np.int8)
    split[rng.permutation(images)[round(TRAINING_SHARE * images) :]] = 1
    features: NDArray[np.float32] = rng.standard_normal((images, FEATURE_SIZE), np.float32)
    np.save(folder / "features.npy", np.maximum(features, 0))
    about = {
        "name": "synthetic",
        "format": f"random captions, {vocabulary} ids, length {length}",
        "source": "synthetic",
        "digest": digest,
        "length": length,
        "dropped": {},
        "broken": [],
        "images": [f"synthetic/{number}" for number in range(images)],
        "vocabulary": entries.entries,
    }
    caption_image = np.sort(np.arange(captions, dtype=np.int32) % images)
    save_arrays(folder, about, tokens=tokens, caption_image=caption_image, split=split)
