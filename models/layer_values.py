"""Fingerprints of what layers take and return, and the first layer at which two sides part."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from models.contract import Array

SUMS = 32
UNKNOWN = np.full((2, SUMS + 1), np.nan)


class Recorder:
    """What each layer takes and returns, call by call, as fingerprints: whole outputs would fill a disk."""

    def __init__(self) -> None:
        self._calls: dict[str, list[Array]] = {}

    def add(self, path: str, taken: Array, returned: Array) -> None:
        """Both are fingerprints, or UNKNOWN."""
        self._calls.setdefault(path, []).append(np.stack([taken, returned]))

    def values(self) -> dict[str, Array]:
        """Path -> (calls, taken and returned, arrangements, size and sums), in the order of the last calls."""
        return {path: np.stack(calls) for path, calls in self._calls.items()}


def fingerprint(array: Array) -> Array:
    """Size and sums of an array as it is, and of its channels moved last: (2, 1 + SUMS).

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
    reference: Mapping[str, Array], other: Mapping[str, Array], limit: float
) -> tuple[str, str]:
    """(layer, behind): the first layer whose output differs, in the order of the reference.

    behind: the last layer before it that agrees, where what the layer takes differs already: what
    lies between them has no name, such as an activation. `inputs` and `outputs` are the network's.
    Layers are compared that both sides have and call as often; of none, two empty names.
    """
    paths = [path for path in reference if path in other and reference[path].shape == other[path].shape]
    errors = {path: tuple(_error(reference[path][:, at], other[path][:, at]) for at in (0, 1)) for path in paths}
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


def _error(reference: Array, other: Array) -> float:
    """Relative L2 error of the worst call, in the arrangements that agree best; infinite for other sizes.

    Arguments have the shape (calls, arrangements, size and sums).
    """
    errors = []
    for first, second in zip(reference, other, strict=True):
        if np.isnan(first).any() or np.isnan(second).any():
            continue
        if first[0, 0] != second[0, 0]:
            return float("inf")
        pairs = ((one[1:], two[1:]) for one in first for two in second)
        errors.append(min(np.linalg.norm(one - two) / (np.linalg.norm(one) or 1) for one, two in pairs))
    return float(max(errors, default=0.0))
