"""Data sets: one file for each format; NumPy batches, the same bytes for every framework."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_T = TypeVar("_T", bound=np.generic)


def marked_modules(package: str, mark: str) -> dict[str, ModuleType]:
    """Return the modules of a package with a constant of that name."""
    path = importlib.import_module(package).__path__
    modules = {
        info.name: importlib.import_module(f"{package}.{info.name}")
        for info in pkgutil.iter_modules(path)
    }
    return {name: module for name, module in modules.items() if hasattr(module, mark)}


def filled(values: NDArray[_T], rows: int) -> NDArray[_T]:
    """Fill an array up to a number of rows, with zeros."""
    missing = np.zeros((rows - len(values), *values.shape[1:]), values.dtype)
    return np.concatenate([values, missing]) if len(missing) else values
