"""The 1,797 handwritten digits of scikit-learn (UCI, Alpaydin and Kaynak, 1998), 8 × 8: embedded, no download."""

from __future__ import annotations

import hashlib

from experiments.datasets.handwritten import handwritten
from experiments.datasets.labelled.raw import Pictures, held_out, of_arrays

EMBEDDED = True  # asked for by its name, `data=digits`
NUMERALS = True


def read() -> Pictures:
    images, targets = handwritten()
    names = tuple(map(str, range(10)))
    key = hashlib.sha256(images.tobytes() + targets.tobytes()).hexdigest()
    return Pictures(
        "digits",
        "scikit-learn",
        key,
        names,
        targets,
        held_out(targets),
        lambda: of_arrays([images]),
    )
