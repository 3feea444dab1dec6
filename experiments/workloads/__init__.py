"""What a cell does: one folder a kind of work, named by the studies that use it."""

from __future__ import annotations

import importlib

from experiments.contract import Workload


def load(name: str) -> Workload:
    """Return what the parent does for a kind of work."""
    workload: Workload = importlib.import_module(f"{__name__}.{name}.prepare").WORKLOAD
    return workload
