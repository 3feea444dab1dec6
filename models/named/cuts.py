"""Search for the places of arrays behind a converter. NumPy only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from models.contract import Array, ErrorCode, ModelError

# Of an array in PyTorch: the order of its axes, then the axis that is cut and the number of parts.
Cut = tuple[Sequence[int], int, int]
# Where a part is: the number of the variable, and from where to where of each axis.
Place = tuple[int, Sequence[tuple[int, int]]]
MOST_ARRAYS_OF_A_VARIABLE = 4


@dataclass(frozen=True)
class Loaded:
    """Variable of KerasHub's network after a converter loaded arrays."""

    path: str
    values: Array
    is_trained: bool


def find(
    arrays: Mapping[str, Array], load: Callable[[Mapping[str, Array]], list[Loaded]]
) -> dict[str, tuple[Cut, list[Place]]]:
    """Return the cut of each array, and the places of its parts.

    Args:
        arrays: Random ones by PyTorch's names.
        load: Returns the variables after the converter loaded arrays. One that is not trained and
            copies another's array, as in DINOv2, has no place and is never loaded: if the network
            reads it, the gate finds a difference.

    Raises:
        ModelError: A variable holds anything else than arrays, parts of them or a constant, or an
            array is in none.
    """
    names = list(arrays)
    numbers = {name: np.full_like(array, at) for at, (name, array) in enumerate(arrays.items())}
    numbered, loaded = load(numbers), load(arrays)
    parts: dict[str, list[tuple[int, Cut, Place]]] = {}
    copies: dict[str, list[tuple[int, Cut, Place]]] = {}
    for number, (with_numbers, variable) in enumerate(zip(numbered, loaded, strict=True)):
        of, values, path = with_numbers.values, variable.values, variable.path
        if np.array_equal(of, values):  # a constant of the network
            continue
        indices = np.unique(of)
        is_index = np.isin(indices, np.arange(len(names)))
        if len(indices) > MOST_ARRAYS_OF_A_VARIABLE or not is_index.all():
            raise _refused(f"{path} of KerasHub's network holds no arrays of the checkpoint alone")
        for index in indices:
            name, inside = names[int(index)], np.argwhere(of == index)
            ends = [*zip(inside.min(0).tolist(), (inside.max(0) + 1).tolist(), strict=True)]
            part = _cut(arrays[name], values[tuple(slice(*pair) for pair in ends)])
            if not part:
                text = f"KerasHub's converter changes the values of {name}, or some of them"
                raise _refused(text)
            cut, at = part
            group = parts if variable.is_trained else copies
            group.setdefault(name, []).append((at, cut, (number, ends)))
    parts = copies | parts
    if left := [name for name in names if name not in parts]:
        raise _refused(f"KerasHub's converter does not read {left[0]}")
    found_cuts = dict[str, tuple[Cut, list[Place]]]()
    for name, of_array in parts.items():
        of_array.sort(key=lambda part: part[0])
        cut = of_array[0][1]
        if {each for _, each, _ in of_array} != {cut} or len(of_array) != cut[2]:
            raise _refused(f"KerasHub's converter uses {name} in several variables")
        found_cuts[name] = cut, [place for *_, place in of_array]
    return found_cuts


def _cut(array: Array, values: Array) -> tuple[Cut, int] | None:
    """Return how values are an array or a part of it, and which part."""
    parts, rest = divmod(array.size, values.size)
    for order in itertools.permutations(range(array.ndim)) if parts and not rest else ():
        turned = array.transpose(order)
        for axis in range(array.ndim) if parts > 1 else (0,):
            if turned.shape[axis] % parts:
                continue
            for at, part in enumerate(np.split(turned, parts, axis)):
                if np.array_equal(part.reshape(values.shape), values):
                    return (order, axis, parts), at
    return None


def _refused(text: str) -> ModelError:
    return ModelError(ErrorCode.UNSUPPORTED, text)
