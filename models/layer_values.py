"""Fingerprints of the inputs and outputs of layers, and the first layer at which two sides differ."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from models.contract import Array

SUMS = 32
UNKNOWN = np.full((2, SUMS + 1), np.nan)


def fingerprint(array: Array) -> Array:
    """Return size and sums of an array as it is, and with its channels moved last: (2, 1 + SUMS).

    The sums weight each value by a normal one: the relative difference of the sums of two arrays
    is about that of the arrays (Johnson and Lindenstrauss, 1984). What is not finite counts as 0.
    """
    values = np.where(np.isfinite(array), array, 0).astype(np.float64)
    weights = _normal_values(values.size)
    arrangements = values, np.moveaxis(values, 1, -1) if values.ndim > 2 else values
    rows = []
    for arranged in arrangements:
        parts = np.array_split(arranged.ravel() * weights, SUMS)
        rows.append([values.size, *(part.sum() for part in parts)])
    return np.array(rows)


@lru_cache(maxsize=4)  # the inputs and outputs of a layer are often of one size
def _normal_values(size: int) -> Array:
    return np.random.default_rng(0).standard_normal(size)


def first_difference(
    reference: Mapping[str, Array], other: Mapping[str, Array], limit: float
) -> tuple[str, str]:
    """Return (layer, behind): the first layer whose output differs, in the reference's order.

    behind: the last layer before it that agrees, if the difference may begin between the two, in
    code without a name such as an activation. `inputs` and `outputs` are the network's. Only
    layers are compared that both sides have and call as often; without any, both names are empty.

    Args:
        reference: by path, arrays of (calls, inputs and outputs, arrangements, size and sums).
        other: the same of the other side.
        limit: of the relative L2 error.
    """
    common = [path for path in reference if path in other]
    paths = [path for path in common if reference[path].shape == other[path].shape]
    inputs = {path: _error(reference[path][:, 0], other[path][:, 0]) for path in paths}
    behind = "inputs"
    for path, following in zip(paths, [*paths[1:], ""], strict=True):
        # inputs of another size are not compared: Keras pads in a layer of its own
        is_input_equal = inputs[path] <= limit
        if limit < inputs[path] < np.inf:
            return path, behind
        error = _error(reference[path][:, 1], other[path][:, 1])
        # one side may return all steps of a sequence, the other only the last
        is_part = np.isinf(error) and inputs.get(following, np.inf) <= limit
        if error > limit and not is_part:
            return path, "" if is_input_equal else behind
        behind = path
    return ("outputs", behind) if paths else ("", "")


def _error(reference: Array, other: Array) -> float:
    """Return the relative L2 error of the worst call, in the arrangements that agree best.

    Infinite for other sizes; calls without known values are left out.

    Args:
        reference: (calls, arrangements, size and sums).
        other: the same of the other side.
    """
    errors = []
    for first, second in zip(reference, other, strict=True):
        if np.isnan(first).any() or np.isnan(second).any():
            continue
        if first[0, 0] != second[0, 0]:
            return float("inf")
        pairs = ((a[1:], b[1:]) for a in first for b in second)
        errors.append(min(np.linalg.norm(a - b) / (np.linalg.norm(a) or 1) for a, b in pairs))
    return float(max(errors, default=0.0))
