"""Measurement by this harness: a point of the grid."""

from __future__ import annotations

from experiments.workloads.grid.measure import run

__all__ = ["run"]
