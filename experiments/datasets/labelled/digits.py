"""Handwritten digits of scikit-learn (UCI, Alpaydin and Kaynak, 1998), 1,797 of 8 × 8: embedded."""

from __future__ import annotations

import gzip
import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.labelled.raw import Pictures, held_out, of_arrays

EMBEDDED = True  # requested by its name, `data=digits`
NUMERALS = True


def read() -> Pictures:
    images, targets = load_digits()
    names = tuple(map(str, range(10)))
    key = hashlib.sha256(images.tobytes() + targets.tobytes()).hexdigest()
    training = held_out(targets)
    return Pictures(
        "digits", "scikit-learn", key, names, targets, training, lambda: of_arrays([images])
    )


def load_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images (n, 8, 8), ink 255 on 0, and their digits (n,).

    They are those of `sklearn.datasets.load_digits`. The file is read without importing the
    package, which would count as memory of a measured process.
    """
    spec = find_spec("sklearn")
    assert spec
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    with gzip.open(path, "rt") as file:
        rows = np.loadtxt(file, delimiter=",")
    images = np.round(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return images, rows[:, -1].astype(np.int64)
