"""Inputs and outputs of a network's layers in one pass, for the parity gate.

Each framework's own module `introspection` has `RATE`, the attribute of a layer that drops, and the
functions `droppers`, `observe` (one pass, with a call of the observer after each call of a layer),
`draw` (the outputs of a layer for ones), `to_numpy` (channels last) and `comparable_output`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from models.contract import Array


class Call(NamedTuple):
    """Call of a layer: its path, the layer, its first input and output, its mode."""

    path: str
    layer: Any
    inputs: Any
    outputs: Any
    is_training: bool


def fingerprint(array: Array) -> Array:
    """Return figures that are the same for all orders of the values.

    Returns:
        Size, sum and sum of squares of the finite values, (3,).
    """
    values = np.where(np.isfinite(array), array, 0).astype(np.float64)
    return np.array([values.size, values.sum(), np.square(values).sum()])


def first_difference(
    reference: Mapping[str, Array], other: Mapping[str, Array], limit: float
) -> tuple[str, str]:
    """Return (layer, behind): the first layer whose output differs, and the last equal one.

    In the reference's order; `inputs` and `outputs` are the network's. Layers are compared that
    both sides have and call as often; without any, both names are empty.

    Args:
        reference: by path, fingerprints of the calls, (calls, 3).
        other: the same of the other side.
        limit: of the difference of a sum, relative to its largest possible value.
    """
    common = [path for path in reference if path in other]
    paths = [path for path in common if reference[path].shape == other[path].shape]
    behind = "inputs"
    for path in paths:
        size, _, squares = reference[path].T
        # a sum is at most the root of size times squares (Cauchy-Schwarz)
        largest = np.stack([size * 0, np.sqrt(size * squares), squares], axis=1)
        if (np.abs(reference[path] - other[path]) > limit * largest).any():
            return path, behind
        behind = path
    return ("outputs", behind) if paths else ("", "")
