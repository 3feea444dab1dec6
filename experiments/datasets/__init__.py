"""Data sets: one file for each format; NumPy batches, the same bytes for every framework."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def marked_modules(package: str, mark: str) -> dict[str, ModuleType]:
    """Return the modules of a package with a constant of that name."""
    path = importlib.import_module(package).__path__
    modules = {
        info.name: importlib.import_module(f"{package}.{info.name}")
        for info in pkgutil.iter_modules(path)
    }
    return {name: module for name, module in modules.items() if hasattr(module, mark)}
