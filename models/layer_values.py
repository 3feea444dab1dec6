"""Fingerprints of what layers take and return, and the first layer at which two sides part."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from models.contract import Array

SUMS = 32
UNKNOWN = np.full((2, SUMS + 1), np.nan)


class Recorder:
    """Fingerprints of what each layer takes and returns, call by call."""

    def __init__(self) -> None:
        self._calls: dict[str, list[Array]] = {}

    def add(self, path: str, taken: Array, returned: Array) -> None:
        """Add a call. Both arrays are fingerprints, or UNKNOWN."""
        self._calls.setdefault(path, []).append(np.stack([taken, returned]))

    def values(self) -> dict[str, Array]:
        """Return an array by path: (calls, taken and returned, arrangements, size and sums)."""
        return {path: np.stack(calls) for path, calls in self._calls.items()}


def fingerprint(array: Array) -> Array:
    """Return size and sums of an array as it is, and with its channels moved last: (2, 1 + SUMS).

    The sums weight every value by a normal one: the relative difference of the sums of two arrays
    is about that of the arrays (Johnson and Lindenstrauss, 1984). What is not finite counts as 0.
    """
    values = np.where(np.isfinite(array), array, 0).astype(np.float64)
    drawn = _drawn(values.size)
    arranged = values, np.moveaxis(values, 1, -1) if values.ndim > 2 else values
    sums = [[part.sum() for part in np.array_split(one.ravel() * drawn, SUMS)] for one in arranged]
    return np.array([[values.size, *one] for one in sums])


@lru_cache(maxsize=4)  # what a layer takes and returns is often of one size
def _drawn(size: int) -> Array:
    return np.random.default_rng(0).standard_normal(size)


def first_difference(
    reference: Mapping[str, Array],
    other: Mapping[str, Array],
    limit: float,
) -> tuple[str, str]:
    """Return (layer, behind): the first layer whose output differs, in the reference's order.

    behind: the last layer before it that agrees, where what the layer takes differs already: what
    lies between them has no name, such as an activation. `inputs` and `outputs` are the network's.
    Layers are compared that both sides have and call as often; of none, two empty names.
    """
    both = [path for path in reference if path in other]
    paths = [path for path in both if reference[path].shape == other[path].shape]
    errors = {path: _errors(reference[path], other[path]) for path in paths}
    behind = "inputs"
    for path, following in zip(paths, [*paths[1:], ""], strict=True):
        taken, returned = errors[path]
        if taken > limit:
            return path, behind
        # of another size, and yet what follows agrees: all steps of a sequence, and the last alone
        is_part = np.isinf(returned) and errors.get(following, (np.inf,))[0] <= limit
        if returned > limit and not is_part:
            return path, ""
        behind = path
    return ("outputs", behind) if paths else ("", "")


def _errors(reference: Array, other: Array) -> tuple[float, float]:
    """Return the errors of what a layer takes and of what it returns."""
    return _error(reference[:, 0], other[:, 0]), _error(reference[:, 1], other[:, 1])


def _error(reference: Array, other: Array) -> float:
    """Return the relative L2 error of the worst call, in the arrangements that agree best.

    Arguments have the shape (calls, arrangements, size and sums). Infinite for other sizes.
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
