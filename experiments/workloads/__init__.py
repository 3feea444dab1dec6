"""Work of cells: a folder for each kind of work, named by the studies that use it."""

from __future__ import annotations

import importlib

from experiments.contract import Workload


def load(name: str) -> Workload:
    """Return the parent's part of a kind of work."""
    workload: Workload = importlib.import_module(f"{__name__}.{name}.prepare").WORKLOAD
    return workload
