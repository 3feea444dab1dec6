"""The 1,797 handwritten digits of scikit-learn (UCI, Alpaydin and Kaynak, 1998), 8 × 8: embedded, no download."""

from __future__ import annotations

import hashlib

import numpy as np

from experiments.datasets.labelled.raw import Pictures, held_out, of_arrays

EMBEDDED = True  # asked for by its name, `data=digits`
NUMERALS = True


def read() -> Pictures:
    from sklearn.datasets import load_digits

    found = load_digits()
    images = np.round(found.images * (255 / 16)).astype(np.uint8)
    names = tuple(str(name) for name in found.target_names)
    key = hashlib.sha256(images.tobytes() + found.target.tobytes()).hexdigest()
    return Pictures("digits", "scikit-learn", key, names, found.target, held_out(found.target), lambda: of_arrays([images]))
