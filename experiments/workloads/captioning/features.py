"""Pooled image features on disk, extracted once for each data, weights, size and framework.

A folder has `features.npy` (images, 1920) float32, `progress.json` with the rows so far and the
pictures that cannot be read, and `complete` at the end.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from experiments.datasets.captions import CaptionData
from models import weights
from models.contract import Framework, ModelError
from models.densenet201.spec import Spec
from tracking.journal import write_atomically

MODEL = "densenet201"
SIZE = 1_920
ARRAY = "features.npy"
PROGRESS = "progress.json"


def encoder(framework: Framework, source: str, seed: int) -> Any:
    """Return DenseNet-201 without its classifier, with the weights of the source."""
    shape = Spec(classes=None)
    network = framework.build(MODEL, shape)
    framework.load_weights(network, weights.load(source, MODEL, shape, seed))
    return network


def resolve(setting: str, seed: int) -> tuple[str, str]:
    """Return the weights as `models.weights` takes them, and the digest of their content.

    `auto` is imagenet if its checkpoint is available.

    Raises:
        UsageError: For weights that are not available.
    """
    if setting == "random":
        return "random", f"random:{seed}"
    try:
        if setting in ("auto", "imagenet"):
            return "imagenet", weights.imagenet(MODEL).name
        path = weights.check_file(Path(setting).expanduser().absolute())
    except ModelError:
        if setting == "auto":
            return resolve("random", seed)
        raise
    with path.open("rb") as file:
        return str(path), hashlib.file_digest(file, "sha256").hexdigest()


def folder_of(
    cache: Path, data: CaptionData, weights_digest: str, image_size: int, framework: str
) -> Path:
    text = json.dumps([data.digest, weights_digest, image_size, framework])
    return cache / "features" / hashlib.sha256(text.encode()).hexdigest()[:16]


def read_progress(folder: Path) -> tuple[int, dict[int, str]]:
    """Return the rows on disk, and the pictures that could not be read: index -> reason."""
    try:
        content = json.loads((folder / PROGRESS).read_text())
    except FileNotFoundError:
        return 0, {}
    return content["rows"], {int(image): reason for image, reason in content["broken"].items()}


def write_progress(folder: Path, rows: int, broken: dict[int, str]) -> None:
    """Record the rows that are on disk; the file is replaced as a whole."""
    write_atomically(folder / PROGRESS, json.dumps({"rows": rows, "broken": broken}, indent=1))


def open_for_writing(folder: Path, images: int) -> np.memmap[Any, np.dtype[np.float32]]:
    """Open the array, that of an interrupted extraction if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ARRAY
    if read_progress(folder)[0] and path.exists():
        return np.lib.format.open_memmap(path, mode="r+")
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(images, SIZE))
