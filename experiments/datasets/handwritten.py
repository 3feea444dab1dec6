"""The 1,797 handwritten digits that come with scikit-learn (UCI, Alpaydin and Kaynak, 1998), 8 × 8."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def handwritten() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 8, 8), ink 255 on 0, and what they show (n,).

    As `sklearn.datasets.load_digits` has them; its file is read without the package, which a measured process would be charged
    with.
    """
    spec = find_spec("sklearn")
    assert spec
    assert spec.submodule_search_locations
    with gzip.open(
        Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz"), "rt"
    ) as file:
        rows = np.loadtxt(file, delimiter=",")
    images = np.round(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return images, rows[:, -1].astype(np.int64)
