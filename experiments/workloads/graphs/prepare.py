"""In the parent: what can be wrong is what can be in training_speed."""

from __future__ import annotations

from experiments.workloads.training_speed.prepare import prepare

__all__ = ["prepare"]
